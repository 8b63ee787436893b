//! How a column is published: which of Debezium's types it has.
//!
//! Types that Debezium does not publish have no field: their columns are left out, as there.

use super::{
    options::{BinaryMode, DecimalMode, EnvelopeOptions, IntervalMode, TimeMode},
    time::Moment,
};
use crate::model::TypeKind;

/// What a column is in Debezium's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    Boolean,
    Int16,
    Int32,
    Int64,
    Float,
    Double,
    /// A string, with the name of what it is.
    Text(Option<&'static str>),
    Enum(Vec<String>),
    /// A number of a fixed scale, precise. Money has no precision.
    Decimal {
        precision: Option<i32>,
        scale: i32,
    },
    /// A number that has its own scale, precise.
    VariableDecimal,
    DecimalText {
        scale: i32,
    },
    DecimalDouble,
    /// Money: PostgreSQL writes it with signs and commas.
    Money(Box<Field>),
    Bytes(BinaryMode),
    /// Days since 1970.
    Date(&'static str),
    IsoDate,
    /// A time of day in units of so many microseconds.
    Time(Unit),
    IsoTime,
    Timestamp(Unit),
    IsoTimestamp,
    ZonedTime,
    /// With so many digits of a second.
    ZonedTimestamp(usize),
    Interval,
    IsoInterval,
    Bit,
    Bits {
        length: i32,
    },
    Point,
    /// Text of an extension's map type, published as a string of JSON.
    Hstore,
    /// PostGIS: bytes and the reference system.
    Geometry(&'static str),
    /// pgvector: numbers.
    Vector(&'static str),
    Array(Box<Field>),
}

/// What times are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    /// Milliseconds, by the names of Kafka Connect.
    Connect,
    Microseconds,
    Nanoseconds,
}

const JSON: Field = Field::Text(Some("io.debezium.data.Json"));
const UNLIMITED_BITS: i32 = i32::MAX;

impl Field {
    /// How a column of this type is published. None: it is left out.
    pub fn of(kind: &TypeKind, oid: u32, modifier: i32, options: &EnvelopeOptions) -> Option<Self> {
        match kind {
            TypeKind::Base => Self::built_in(oid, modifier, options),
            // The built-in ones have known OIDs; Debezium leaves out the others.
            TypeKind::Range => Self::built_in(oid, modifier, options),
            TypeKind::Extension(name) => Self::extension(name),
            TypeKind::Enum(labels) => Some(Self::Enum(labels.clone())),
            TypeKind::Domain { base, base_oid, base_modifier } => Self::of(base, *base_oid, *base_modifier, options),
            TypeKind::Array { element, element_oid } => {
                // The modifier of an array is that of its elements.
                let element = Self::of_element(element, *element_oid, modifier, options)?;
                Some(Self::Array(Box::new(element)))
            }
            TypeKind::Composite | TypeKind::Multirange | TypeKind::Unknown => None,
        }
    }

    /// Debezium knows fewer types in arrays.
    fn of_element(kind: &TypeKind, oid: u32, modifier: i32, options: &EnvelopeOptions) -> Option<Self> {
        if matches!(kind, TypeKind::Domain { .. } | TypeKind::Array { .. }) {
            return None;
        }
        match Self::of(kind, oid, modifier, options)? {
            Self::Money(_) | Self::Interval | Self::IsoInterval | Self::Bit | Self::Bits { .. } | Self::Point => None,
            Self::Text(Some("io.debezium.data.Xml")) | Self::Geometry(_) | Self::Vector(_) => None,
            _ if matches!(kind, TypeKind::Base) && oid == 19 => None,
            field => Some(field),
        }
    }

    fn built_in(oid: u32, modifier: i32, options: &EnvelopeOptions) -> Option<Self> {
        Some(match oid {
            16 => Self::Boolean,
            17 => Self::Bytes(options.binary),
            // oid
            20 | 26 => Self::Int64,
            21 => Self::Int16,
            23 => Self::Int32,
            // "char", name, text, bpchar, varchar
            18 | 19 | 25 | 1042 | 1043 => Self::Text(None),
            // cidr, macaddr8, macaddr, inet
            650 | 774 | 829 | 869 => Self::Text(None),
            // Ranges of int4, numeric, timestamp, timestamptz, date, int8
            3904 | 3906 | 3908 | 3910 | 3912 | 3926 => Self::Text(None),
            // json, jsonb
            114 | 3802 => JSON,
            142 => Self::Text(Some("io.debezium.data.Xml")),
            2950 => Self::Text(Some("io.debezium.data.Uuid")),
            3614 => Self::Text(Some("io.debezium.data.Tsvector")),
            700 => Self::Float,
            701 => Self::Double,
            1700 => Self::numeric(modifier, options.decimal),
            790 => Self::Money(Box::new(match options.decimal {
                DecimalMode::Precise => Self::Decimal { precision: None, scale: 2 },
                DecimalMode::String => Self::DecimalText { scale: 2 },
                DecimalMode::Double => Self::DecimalDouble,
            })),
            1082 => match options.time {
                TimeMode::IsoString => Self::IsoDate,
                TimeMode::Connect => Self::Date("org.apache.kafka.connect.data.Date"),
                _ => Self::Date("io.debezium.time.Date"),
            },
            1083 => match (options.time, modifier) {
                (TimeMode::IsoString, _) => Self::IsoTime,
                (TimeMode::Adaptive, 0..=3) => Self::Time(Unit::Milliseconds),
                (mode, _) => Self::Time(mode.unit()),
            },
            1114 => match (options.time, modifier) {
                (TimeMode::IsoString, _) => Self::IsoTimestamp,
                (TimeMode::Adaptive | TimeMode::AdaptiveTimeMicroseconds, 0..=3) => Self::Timestamp(Unit::Milliseconds),
                (mode, _) => Self::Timestamp(mode.unit()),
            },
            1184 => Self::ZonedTimestamp(usize::try_from(modifier).unwrap_or(6)),
            1266 => Self::ZonedTime,
            1186 => match options.interval {
                IntervalMode::Numeric => Self::Interval,
                IntervalMode::String => Self::IsoInterval,
            },
            1560 if modifier == 1 => Self::Bit,
            1560 | 1562 => Self::Bits { length: if modifier < 0 { UNLIMITED_BITS } else { modifier } },
            600 => Self::Point,
            _ => return None,
        })
    }

    fn numeric(modifier: i32, mode: DecimalMode) -> Self {
        // Precision and scale are packed; the scale has eleven bits, and a sign since PostgreSQL 15.
        let precision = (modifier - 4) >> 16 & 0xffff;
        let scale = (((modifier - 4) & 0x7ff) ^ 1024) - 1024;
        match mode {
            DecimalMode::String => Self::DecimalText { scale: if modifier < 0 { 0 } else { scale.max(0) } },
            DecimalMode::Double => Self::DecimalDouble,
            DecimalMode::Precise if modifier < 0 => Self::VariableDecimal,
            DecimalMode::Precise => Self::Decimal { precision: Some(precision), scale },
        }
    }

    fn extension(name: &str) -> Option<Self> {
        Some(match name {
            "citext" => Self::Text(None),
            "ltree" => Self::Text(Some("io.debezium.data.Ltree")),
            "hstore" => Self::Hstore,
            "geometry" => Self::Geometry("io.debezium.data.geometry.Geometry"),
            "geography" => Self::Geometry("io.debezium.data.geometry.Geography"),
            "vector" => Self::Vector("io.debezium.data.DoubleVector"),
            "halfvec" => Self::Vector("io.debezium.data.FloatVector"),
            _ => return None,
        })
    }

    /// Whether its JSON is a string.
    pub fn is_string(&self) -> bool {
        match self {
            Self::Text(_) | Self::Enum(_) | Self::DecimalText { .. } | Self::Hstore => true,
            Self::IsoDate | Self::IsoTime | Self::IsoTimestamp | Self::IsoInterval => true,
            Self::ZonedTime | Self::ZonedTimestamp(_) => true,
            Self::Bytes(mode) => *mode != BinaryMode::Bytes,
            Self::Money(inner) => inner.is_string(),
            _ => false,
        }
    }
}

impl TimeMode {
    fn unit(self) -> Unit {
        match self {
            Self::Connect => Unit::Connect,
            Self::Nanoseconds => Unit::Nanoseconds,
            _ => Unit::Microseconds,
        }
    }
}

impl Unit {
    /// Microseconds in this unit. None for what 64 bits cannot hold.
    pub fn of(self, micros: i64) -> Option<i64> {
        match self {
            Self::Milliseconds | Self::Connect => Some(micros.div_euclid(1000)),
            Self::Microseconds => Some(micros),
            Self::Nanoseconds => micros.checked_mul(1000),
        }
    }

    /// A timestamp in this unit. None for what 64 bits cannot hold.
    pub fn of_moment(self, moment: Moment) -> Option<i64> {
        match self {
            Self::Milliseconds | Self::Connect => Some(moment.millis()),
            Self::Microseconds | Self::Nanoseconds => self.of(moment.micros()),
        }
    }
}
