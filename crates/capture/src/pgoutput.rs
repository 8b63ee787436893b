//! Reads messages of `pgoutput`, the output plugin that every PostgreSQL has. Protocol version 1: a transaction comes whole,
//! after its commit.

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
    /// A type or an origin: says nothing that we need.
    Other,
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

/// Reads one message.
pub(crate) fn decode(mut body: Bytes) -> Result<Message> {
    let reader = &mut Reader(&mut body);
    Ok(match reader.u8()? {
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
    fn unknown_kinds_are_errors() {
        assert!(decode(Bytes::from_static(b"Z")).is_err());
        assert!(decode(Bytes::from_static(&[b'I', 0, 0, 0, 7, b'N', 0, 1, b'x'])).is_err());
    }
}
