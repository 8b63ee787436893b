//! Reads messages of `pgoutput`, the output plugin that every PostgreSQL has. With protocol version 1, a transaction comes
//! whole, after its commit. With version 2, a large one comes in blocks while it is open: its messages name their
//! (sub)transaction, and are kept on disk ([`crate::Spool`]) until its commit.

use bytes::{Buf as _, Bytes};

use crate::{CaptureError, Row, Value, connection::protocol};

type Result<T> = std::result::Result<T, CaptureError>;

/// Between 1970, from which we count, and 2000, from which PostgreSQL does, in microseconds.
pub(crate) const EPOCH: i64 = 946_684_800_000_000;

/// A message of the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Begin {
        commit_lsn: u64,
        committed_at: i64,
        transaction: u32,
    },
    Commit {
        end_lsn: u64,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        after: Row,
    },
    Update {
        relation: u32,
        before: Option<Row>,
        whole_before: bool,
        after: Row,
    },
    Delete {
        relation: u32,
        before: Row,
        whole_before: bool,
    },
    Truncate {
        relations: Vec<u32>,
    },
    Logical {
        in_transaction: bool,
        lsn: u64,
        prefix: String,
        content: Bytes,
    },
    /// A block of an open transaction begins.
    StreamStart {
        transaction: u32,
    },
    /// The block ends.
    StreamStop,
    /// A transaction that came in blocks was committed.
    StreamCommit {
        transaction: u32,
        commit_lsn: u64,
        end_lsn: u64,
        committed_at: i64,
    },
    /// A transaction that comes in blocks, or a part of it, was rolled back.
    StreamAbort {
        transaction: u32,
        subtransaction: u32,
    },
    /// A type or an origin: says nothing that we need.
    Other,
}

/// What a message within a block is, and whose. The rest of it is like that of version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockMessage {
    pub(crate) kind: u8,
    /// Its transaction, or its subtransaction. Types and origins are nobody's.
    pub(crate) transaction: Option<u32>,
}

impl BlockMessage {
    /// Reads the head of a message, up to where versions 1 and 2 are alike.
    pub(crate) fn read(body: &mut Bytes) -> Result<Self> {
        let mut reader = Reader(body);
        let kind = reader.u8()?;
        let transaction = match kind {
            b'R' | b'I' | b'U' | b'D' | b'T' | b'M' => Some(reader.u32()?),
            b'Y' | b'O' => None,
            other => return Err(protocol(format!("a message of the kind {:?} within a block", other as char))),
        };
        Ok(Self { kind, transaction })
    }

    /// The end of a block, which has nothing but its kind.
    pub(crate) fn is_stop(body: &[u8]) -> bool {
        body.first() == Some(&b'E')
    }
}

/// A table as the stream describes it, before its first change and after each change of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// Its OID.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<RelationColumn>,
}

/// A column as the stream describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// Its name.
    pub name: String,
    /// The OID of its type.
    pub type_oid: u32,
    /// The modifier of its type; -1 if there is none.
    pub type_modifier: i32,
    /// Whether it belongs to the replica identity.
    pub in_identity: bool,
}

/// Reads one message outside of blocks.
pub(crate) fn decode(mut body: Bytes) -> Result<Message> {
    let kind = Reader(&mut body).u8()?;
    decode_rest(kind, body)
}

/// Reads what follows the kind of a message, and within a block the number of its transaction.
pub(crate) fn decode_rest(kind: u8, mut body: Bytes) -> Result<Message> {
    let reader = &mut Reader(&mut body);
    Ok(match kind {
        b'B' => Message::Begin {
            commit_lsn: reader.u64()?,
            committed_at: reader.i64()?.saturating_add(EPOCH),
            transaction: reader.u32()?,
        },
        b'C' => {
            reader.skip(9)?; // Flags, and the LSN that the beginning has named already.
            Message::Commit { end_lsn: reader.u64()? }
        }
        b'R' => Message::Relation(reader.relation()?),
        b'I' => {
            let relation = reader.u32()?;
            reader.expect(b'N')?;
            Message::Insert { relation, after: reader.row()? }
        }
        b'U' => {
            let relation = reader.u32()?;
            let mut kind = reader.u8()?;
            let (mut before, whole_before) = (None, kind == b'O');
            if matches!(kind, b'K' | b'O') {
                before = Some(reader.row()?);
                kind = reader.u8()?;
            }
            if kind != b'N' {
                return Err(protocol("an update without its new row"));
            }
            Message::Update { relation, before, whole_before, after: reader.row()? }
        }
        b'D' => {
            let relation = reader.u32()?;
            let kind = reader.u8()?;
            if !matches!(kind, b'K' | b'O') {
                return Err(protocol("a delete without its old row"));
            }
            Message::Delete { relation, before: reader.row()?, whole_before: kind == b'O' }
        }
        b'T' => {
            let number = reader.u32()?;
            reader.skip(1)?;
            Message::Truncate { relations: (0..number).map(|_| reader.u32()).collect::<Result<_>>()? }
        }
        b'M' => {
            let in_transaction = reader.u8()? & 1 == 1;
            let (lsn, prefix, bytes) = (reader.u64()?, reader.text()?, reader.u32()? as usize);
            Message::Logical { in_transaction, lsn, prefix, content: reader.bytes(bytes)? }
        }
        b'S' => Message::StreamStart { transaction: reader.u32()? },
        b'E' => Message::StreamStop,
        b'c' => {
            let transaction = reader.u32()?;
            reader.skip(1)?; // Flags.
            Message::StreamCommit {
                transaction,
                commit_lsn: reader.u64()?,
                end_lsn: reader.u64()?,
                committed_at: reader.i64()?.saturating_add(EPOCH),
            }
        }
        b'A' => Message::StreamAbort { transaction: reader.u32()?, subtransaction: reader.u32()? },
        b'Y' | b'O' => Message::Other,
        other => return Err(protocol(format!("a message of the unknown kind {:?}", other as char))),
    })
}

/// Reads from a message that may be too short.
pub(crate) struct Reader<'a>(pub(crate) &'a mut Bytes);

impl Reader<'_> {
    fn need(&self, bytes: usize) -> Result<()> {
        if self.0.len() < bytes { Err(protocol("a message that ends too early")) } else { Ok(()) }
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    fn u16(&mut self) -> Result<u16> {
        self.need(2)?;
        Ok(self.0.get_u16())
    }

    fn u32(&mut self) -> Result<u32> {
        self.need(4)?;
        Ok(self.0.get_u32())
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.need(8)?;
        Ok(self.0.get_u64())
    }

    fn i64(&mut self) -> Result<i64> {
        self.need(8)?;
        Ok(self.0.get_i64())
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<()> {
        self.need(bytes)?;
        self.0.advance(bytes);
        Ok(())
    }

    fn bytes(&mut self, bytes: usize) -> Result<Bytes> {
        self.need(bytes)?;
        Ok(self.0.split_to(bytes))
    }

    fn text(&mut self) -> Result<String> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(|| protocol("a text without an end"))?;
        let text = self.0.split_to(end);
        self.0.advance(1);
        String::from_utf8(text.to_vec()).map_err(|_| protocol("a name that is not UTF-8"))
    }

    fn expect(&mut self, kind: u8) -> Result<()> {
        match self.u8()? == kind {
            true => Ok(()),
            false => Err(protocol("a row of an unexpected kind")),
        }
    }

    fn row(&mut self) -> Result<Row> {
        let number = self.u16()?;
        let mut row = Vec::with_capacity(number.into());
        for _ in 0..number {
            row.push(match self.u8()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let bytes = self.u32()? as usize;
                    Value::Text(self.bytes(bytes)?)
                }
                other => return Err(protocol(format!("a value of the unknown kind {:?}", other as char))),
            });
        }
        Ok(row)
    }

    fn relation(&mut self) -> Result<Relation> {
        let (oid, schema, name) = (self.u32()?, self.text()?, self.text()?);
        self.skip(1)?; // The replica identity: the columns say it as well.
        let number = self.u16()?;
        let mut columns = Vec::with_capacity(number.into());
        for _ in 0..number {
            let flags = self.u8()?;
            let (name, type_oid) = (self.text()?, self.u32()?);
            let type_modifier = self.u32()?.cast_signed();
            columns.push(RelationColumn { name, type_oid, type_modifier, in_identity: flags & 1 == 1 });
        }
        // The catalog's own schema comes without a name.
        let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
        Ok(Relation { oid, schema, name, columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_ends_too_early_is_an_error_at_any_place() {
        let mut insert = vec![b'I', 0, 0, 0, 7, b'N', 0, 3, b'n', b'u', b't', 0, 0, 0, 2];
        insert.extend_from_slice(b"ok");
        let whole = decode(Bytes::from(insert.clone())).unwrap();
        let after = vec![Value::Null, Value::Unchanged, Value::Text(Bytes::from_static(b"ok"))];
        assert_eq!(whole, Message::Insert { relation: 7, after });
        for bytes in 0..insert.len() {
            assert!(decode(Bytes::from(insert[..bytes].to_vec())).is_err(), "{bytes} bytes");
        }
    }

    #[test]
    fn a_message_of_a_block_names_its_transaction_first() {
        let mut message = Bytes::from_static(&[b'I', 0, 0, 2, 215, 0, 0, 0, 7, b'N', 0, 1, b'n']);
        let head = BlockMessage::read(&mut message).unwrap();
        assert_eq!(head, BlockMessage { kind: b'I', transaction: Some(727) });
        let insert = decode_rest(head.kind, message).unwrap();
        assert_eq!(insert, Message::Insert { relation: 7, after: vec![Value::Null] });
        assert!(BlockMessage::read(&mut Bytes::from_static(b"B")).is_err());
        assert!(BlockMessage::read(&mut Bytes::from_static(&[b'I', 0, 0])).is_err());
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_a_message_or_an_error(
            kind in proptest::prelude::any::<u8>(),
            known in proptest::sample::select(b"BCRIUDTMYOSEcA".to_vec()),
            rest in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        ) {
            for kind in [kind, known] {
                let message = Bytes::from([&[kind], rest.as_slice()].concat());
                let _ = decode(message.clone());
                let mut in_block = message;
                if let Ok(head) = BlockMessage::read(&mut in_block) {
                    let _ = decode_rest(head.kind, in_block);
                }
            }
        }
    }

    #[test]
    fn unknown_kinds_are_errors() {
        assert!(decode(Bytes::from_static(b"Z")).is_err());
        assert!(decode(Bytes::from_static(&[b'I', 0, 0, 0, 7, b'N', 0, 1, b'x'])).is_err());
    }
}
