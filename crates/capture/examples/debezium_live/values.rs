//! A table of many types, and random statements on it: ordinary values, extremes and NULL.
//!
//! What differs from Debezium whatever the value is (see `comparison::DIFFERENT`) is not among the types.

use std::fmt::Write as _;

use relais_testkit::Random;

/// Makes a value in PostgreSQL's text form.
type Make = fn(&mut Random) -> String;

const COLUMNS: &[(&str, &str, Make)] = &[
    ("bo", "boolean", |r| pick(r, &["t", "f"])),
    ("i2", "smallint", |r| integer(r, 16)),
    ("i4", "integer", |r| integer(r, 32)),
    ("i8", "bigint", |r| integer(r, 64)),
    ("r", "real", real),
    ("f8", "double precision", double),
    ("n", "numeric", |r| numeric(r, 30, 20)),
    ("n2", "numeric(12,2)", |r| numeric(r, 10, 2)),
    ("n0", "numeric(38)", |r| numeric(r, 38, 0)),
    ("mo", "money", |r| numeric(r, 16, 2)),
    ("oi", "oid", |r| (r.bits() as u32).to_string()),
    ("tx", "text", |r| text(r, 40)),
    ("vc", "varchar(20)", |r| text(r, 20)),
    ("c5", "char(5)", |r| text(r, 5)),
    ("ci", "citext", |r| text(r, 10)),
    ("xm", "xml", |r| format!("<a b=\"{}\">é</a>", r.below(100))),
    ("lt", "ltree", |r| list(r, 4, ".", |r| pick(r, &["Top", "a_1", "Z"]))),
    ("hs", "hstore", |r| {
        list(r, 4, ", ", |r| format!("\"k{}\"=>{}", r.below(9), pick(r, &["\"v\"", "NULL", "\"é\\\"\""])))
    }),
    ("uu", "uuid", uuid),
    ("jb", "jsonb", |r| json(r, 3)),
    ("js", "json", |r| json(r, 3)),
    ("by", "bytea", bytea),
    ("b1", "bit(1)", |r| bits(r, 1)),
    ("b9", "bit(9)", |r| bits(r, 9)),
    ("vb", "varbit", |r| {
        let length = r.below(70);
        bits(r, length)
    }),
    ("d", "date", |r| special(r, &["infinity", "-infinity", "4713-11-24 BC", "5874897-12-31"], |r| day(r).join(""))),
    ("t", "time", |r| time(r, 6)),
    ("t3", "time(3)", |r| time(r, 3)),
    ("ttz", "timetz", |r| time(r, 6) + &zone(r)),
    ("ts", "timestamp", |r| special(r, TIMESTAMPS, |r| timestamp(r, 6, ""))),
    ("ts3", "timestamp(3)", |r| special(r, TIMESTAMPS, |r| timestamp(r, 3, ""))),
    ("tz", "timestamptz", |r| {
        let zone = zone(r);
        special(r, &["infinity", "-infinity", "294276-12-31 23:59:59+00"], |r| timestamp(r, 6, &zone))
    }),
    ("tz0", "timestamptz(0)", |r| timestamp(r, 0, "+00")),
    ("iv", "interval", interval),
    ("ip", "inet", |r| pick(r, &["10.1.2.3", "192.168.0.0/16", "::1", "fe80::1/64", "255.255.255.255"])),
    ("cd", "cidr", |r| pick(r, &["10.0.0.0/8", "192.168.1.1/32", "2001:db8::/32"])),
    ("mac", "macaddr", |r| format!("08:00:2b:01:02:{:02x}", r.below(256))),
    ("pt", "point", |r| format!("({},{})", double_finite(r), r.below(1000))),
    ("en", "mood", |r| pick(r, &["sad", "ok", "happy"])),
    ("dm", "d_num", |r| numeric(r, 8, 2)),
    ("ir", "int4range", |r| range(r, |n| n.to_string())),
    ("nr", "numrange", |r| range(r, |n| format!("{n}.50"))),
    ("dr", "daterange", |r| range(r, |n| format!("2024-01-{:02}", n + 1))),
    ("tr", "tsrange", |r| range(r, |n| format!("\"2024-01-{:02} 10:11:12.5\"", n + 1))),
    ("zr", "tstzrange", |r| range(r, |n| format!("\"2024-01-{:02} 10:11:12.5+02\"", n + 1))),
    ("abo", "boolean[]", |r| array(r, |r| pick(r, &["t", "f"]))),
    ("ai", "integer[]", |r| array(r, |r| integer(r, 32))),
    ("al", "bigint[]", |r| array(r, |r| integer(r, 64))),
    ("af", "double precision[]", |r| array(r, double)),
    ("an", "numeric[]", |r| array(r, |r| numeric(r, 12, 8))),
    ("at", "text[]", |r| array(r, |r| text(r, 12))),
    ("au", "uuid[]", |r| array(r, uuid)),
    ("ad", "date[]", |r| array(r, late_day)),
    ("ats", "timestamp[]", |r| array(r, |r| late_timestamp(r, ""))),
    ("atz", "timestamptz[]", |r| array(r, |r| late_timestamp(r, "+03"))),
    ("ajb", "jsonb[]", |r| array(r, |r| json(r, 2))),
    ("aby", "bytea[]", |r| array(r, bytea)),
    // Without NULL, for which Debezium has no place in it.
    ("aen", "mood[]", |r| format!("{{{}}}", list(r, 4, ",", |r| pick(r, &["sad", "ok", "happy"])))),
    ("big", "text", |r| text(r, 4).repeat(1000)),
];

const TIMESTAMPS: &[&str] =
    &["infinity", "-infinity", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59", "1970-01-01 00:00:00"];

/// The tables with their replica identities.
pub const TABLES: [&str; 2] = ["t_random", "t_random_full"];

/// What makes the tables.
pub fn create() -> Vec<String> {
    let mut columns = String::from("id int PRIMARY KEY");
    for (name, kind, _) in COLUMNS {
        let _ = write!(columns, ", {name} {kind}");
    }
    let [plain, full] = TABLES;
    [
        "CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree".to_owned(),
        "CREATE TYPE mood AS ENUM ('sad','ok','happy'); CREATE DOMAIN d_num AS numeric(10,2)".to_owned(),
        format!("CREATE TABLE {plain} ({columns}); ALTER TABLE {plain} ALTER big SET STORAGE EXTERNAL"),
        format!("CREATE TABLE {full} ({columns}); ALTER TABLE {full} REPLICA IDENTITY FULL"),
    ]
    .into()
}

/// Makes statements on the tables.
pub struct Statements {
    random: Random,
    /// The rows that are there.
    ids: [Vec<usize>; 2],
    next: usize,
}

impl Statements {
    pub fn new(random: Random) -> Self {
        Self { random, ids: [Vec::new(), Vec::new()], next: 1 }
    }

    /// A transaction of some statements. One in ten is rolled back.
    pub fn transaction(&mut self) -> String {
        let before = self.ids.clone();
        let count = 1 + self.random.below(4);
        let statements: Vec<String> = (0..count).map(|_| self.statement()).collect();
        let rolled_back = self.random.once_in(10);
        if rolled_back {
            self.ids = before;
        }
        let end = if rolled_back { "ROLLBACK" } else { "COMMIT" };
        format!("BEGIN; {}; {end}", statements.join("; "))
    }

    fn statement(&mut self) -> String {
        let place = self.random.below(TABLES.len());
        let table = TABLES[place];
        self.next += 1;
        let new = self.next;
        if self.ids[place].is_empty() || !self.random.once_in(3) {
            self.ids[place].push(new);
            let values: Vec<String> = COLUMNS.iter().map(|(_, _, make)| value(&mut self.random, *make)).collect();
            return format!("INSERT INTO {table} VALUES ({new}, {})", values.join(", "));
        }
        let row = self.random.below(self.ids[place].len());
        let id = self.ids[place][row];
        match self.random.below(5) {
            0 => {
                self.ids[place].swap_remove(row);
                format!("DELETE FROM {table} WHERE id = {id}")
            }
            1 => {
                self.ids[place][row] = new;
                format!("UPDATE {table} SET id = {new} WHERE id = {id}")
            }
            _ => {
                let first = self.random.below(COLUMNS.len());
                let last = COLUMNS.len().min(first + 1 + self.random.below(5));
                let set = |(name, _, make): &(&str, &str, Make)| format!("{name} = {}", value(&mut self.random, *make));
                let changed: Vec<String> = COLUMNS[first..last].iter().map(set).collect();
                format!("UPDATE {table} SET {} WHERE id = {id}", changed.join(", "))
            }
        }
    }
}

/// In SQL; sometimes NULL.
fn value(random: &mut Random, make: Make) -> String {
    if random.once_in(8) { "NULL".to_owned() } else { format!("'{}'", make(random).replace('\'', "''")) }
}

fn pick(random: &mut Random, choices: &[&str]) -> String {
    (*random.pick(choices)).to_owned()
}

/// Sometimes one of these.
fn special(random: &mut Random, values: &[&str], make: impl Fn(&mut Random) -> String) -> String {
    if random.once_in(6) { pick(random, values) } else { make(random) }
}

fn list(random: &mut Random, most: usize, separator: &str, make: Make) -> String {
    let count = random.below(most + 1);
    (0..count).map(|_| make(random)).collect::<Vec<_>>().join(separator)
}

fn array(random: &mut Random, make: Make) -> String {
    let count = random.below(4);
    let element = |random: &mut Random| match random.once_in(5) {
        true => "NULL".to_owned(),
        false => format!("\"{}\"", make(random).replace('\\', "\\\\").replace('"', "\\\"")),
    };
    let elements: Vec<String> = (0..count).map(|_| element(random)).collect();
    format!("{{{}}}", elements.join(","))
}

fn range(random: &mut Random, make: fn(usize) -> String) -> String {
    let low = random.below(10);
    let high = low + 1 + random.below(10);
    match random.below(5) {
        0 => "empty".to_owned(),
        1 => format!("[{},)", make(low)),
        2 => format!("(,{})", make(high)),
        _ => format!("{}{},{}{}", pick(random, &["[", "("]), make(low), make(high), pick(random, &["]", ")"])),
    }
}

fn integer(random: &mut Random, size: u32) -> String {
    let (least, most) = (i64::MIN >> (64 - size), i64::MAX >> (64 - size));
    match random.below(4) {
        0 => [least, least + 1, -1, 0, 1, most - 1, most][random.below(7)],
        1 => random.below(1000) as i64 - 500,
        _ => (random.bits() as i64) >> (64 - size),
    }
    .to_string()
}

fn double_finite(random: &mut Random) -> f64 {
    let number = f64::from_bits(random.bits());
    if number.is_finite() && random.once_in(2) { number } else { random.below(1_000_000) as f64 / 64.0 }
}

fn double(random: &mut Random) -> String {
    let extremes = ["NaN", "Infinity", "-Infinity", "-0", "0", "5e-324", "1.7976931348623157e308", "1e7", "0.001"];
    special(random, &extremes, |random| double_finite(random).to_string())
}

fn real(random: &mut Random) -> String {
    let extremes = ["NaN", "Infinity", "-Infinity", "-0", "0", "1e-45", "3.4028235e38", "1e7", "0.001"];
    special(random, &extremes, |random| {
        let number = f32::from_bits(random.bits() as u32);
        if number.is_finite() { number.to_string() } else { "1.5".to_owned() }
    })
}

/// Digits before and after the point, at most so many.
fn numeric(random: &mut Random, before: usize, after: usize) -> String {
    let digits = |random: &mut Random, most: usize| -> String {
        let count = random.below(most + 1);
        (0..count).map(|_| char::from(b'0' + random.below(10) as u8)).collect()
    };
    let sign = if random.once_in(2) { "-" } else { "" };
    let (whole, fraction) = (digits(random, before), digits(random, after));
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}0{whole}{point}{fraction}")
}

fn text(random: &mut Random, most: usize) -> String {
    let pieces = [
        "a", "Z", "0", " ", "'", "\"", "\\", "/", "\n", "\t", "\u{1}", "\u{7f}", "é", "☃", "😀", "\u{2028}", "<", "&",
        "{", "%",
    ];
    let count = random.below(most + 1);
    (0..count).map(|_| *random.pick(&pieces)).collect()
}

/// JSON without what PostgreSQL or a number of 64 bits could not hold.
pub fn json(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => "null".to_owned(),
        1 => pick(random, &["true", "false"]),
        2 => numeric(random, 0, 9),
        3 => integer(random, 64),
        4 => serde_json::Value::from(text(random, 8)).to_string(),
        5 => format!("[{}, {}]", json(random, depth - 1), json(random, depth - 1)),
        _ => format!("{{\"b\": {}, \"a é\" : {}}}", json(random, depth - 1), json(random, depth - 1)),
    }
}

fn uuid(random: &mut Random) -> String {
    format!("{:016x}{:016x}", random.bits(), random.bits())
}

fn bytea(random: &mut Random) -> String {
    let count = random.below(20);
    (0..count).fold("\\x".to_owned(), |text, _| format!("{text}{:02x}", random.below(256)))
}

fn bits(random: &mut Random, length: usize) -> String {
    (0..length).map(|_| if random.once_in(2) { '1' } else { '0' }).collect()
}

/// A date, and what follows the time if it is before Christ.
fn day(random: &mut Random) -> [String; 2] {
    let age = random.below(10);
    day_of(random, age)
}

/// The same for arrays: Debezium reads dates before 1582 in them otherwise.
fn late_day(random: &mut Random) -> String {
    let age = 2 + random.below(8);
    day_of(random, age).concat()
}

fn day_of(random: &mut Random, age: usize) -> [String; 2] {
    let (year, era) = match age {
        0 => (1 + random.below(4700), " BC"),
        1 => (1 + random.below(1582), ""),
        2 => (1583 + random.below(386), ""),
        3 => (2039 + random.below(7960), ""),
        4 => (10_000 + random.below(280_000), ""),
        _ => (1970 + random.below(68), ""),
    };
    [format!("{year:04}-{:02}-{:02}", 1 + random.below(12), 1 + random.below(28)), era.to_owned()]
}

fn time(random: &mut Random, digits: usize) -> String {
    let fraction = match digits {
        0 => String::new(),
        _ => format!(".{:0digits$}", random.below(10_usize.pow(digits as u32)) / [1, 1, 10, 1000][random.below(4)]),
    };
    let whole = format!("{:02}:{:02}:{:02}", random.below(24), random.below(60), random.below(60));
    special(random, &["00:00:00", "23:59:59"], |_| format!("{whole}{fraction}"))
}

fn zone(random: &mut Random) -> String {
    pick(random, &["+00", "+02", "-05", "+05:30", "-09:30", "+14"])
}

fn timestamp(random: &mut Random, digits: usize, zone: &str) -> String {
    let [day, era] = day(random);
    format!("{day} {}{zone}{era}", time(random, digits))
}

fn late_timestamp(random: &mut Random, zone: &str) -> String {
    let day = late_day(random);
    format!("{day} {}{zone}", time(random, 6))
}

fn interval(random: &mut Random) -> String {
    let sign = |random: &mut Random| if random.once_in(3) { "-" } else { "" };
    let (years, months, days) = (random.below(200), random.below(12), random.below(60));
    let [one, two, three] = [sign(random), sign(random), sign(random)];
    let exact = format!("{one}{years} years {one}{months} mons {two}{days} days {three}{}", time(random, 6));
    special(random, &["0", "178000 years", "-178000 years", "1 mon -1 day", "00:00:00.000001"], |_| exact.clone())
}
