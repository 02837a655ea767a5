//! PostgreSQL's built-in types: `pg_type`, `format_type` and type names in SQL.
//!
//! `data/types.txt` has a line for each, with the oids that PostgreSQL 15 gives them and that drivers have built in.

use std::collections::HashMap;
use std::sync::LazyLock;
use tidepool_heap::QueryHeap;

/// A row of `pg_type`.
#[derive(Debug)]
pub struct TypeEntry {
    pub oid: u32,
    pub name: &'static str,
    pub len: i16,
    pub by_value: bool,
    /// `b` base, `p` pseudo, `r` range, `m` multirange.
    pub kind: &'static str,
    pub category: &'static str,
    pub preferred: bool,
    pub delimiter: &'static str,
    /// The type of an array's items, or 0.
    pub element: u32,
    /// The type of arrays of it, or 0.
    pub array: u32,
    pub input: u32,
    pub output: u32,
    pub receive: u32,
    pub send: u32,
    pub modifier_input: u32,
    pub modifier_output: u32,
    pub alignment: &'static str,
    pub storage: &'static str,
    pub collation: u32,
    /// As `format_type` writes it, without a modifier.
    pub display: String,
}

static TYPES: LazyLock<Vec<TypeEntry>> =
    LazyLock::new(|| QueryHeap::outside(|| include_str!("data/types.txt").lines().filter_map(parse).collect()));
static BY_OID: LazyLock<HashMap<u32, &'static TypeEntry>> =
    LazyLock::new(|| QueryHeap::outside(|| TYPES.iter().map(|entry| (entry.oid, entry)).collect()));
static BY_NAME: LazyLock<HashMap<&'static str, &'static TypeEntry>> =
    LazyLock::new(|| QueryHeap::outside(|| TYPES.iter().map(|entry| (entry.name, entry)).collect()));

fn parse(line: &'static str) -> Option<TypeEntry> {
    let word: Vec<&'static str> = line.split(' ').collect();
    let number = |index: usize| word.get(index)?.parse::<u32>().ok();
    Some(TypeEntry {
        oid: number(0)?,
        name: word.get(1)?,
        len: word.get(2)?.parse().ok()?,
        by_value: number(3)? == 1,
        kind: word.get(4)?,
        category: word.get(5)?,
        preferred: number(6)? == 1,
        delimiter: word.get(7)?,
        element: number(9)?,
        array: number(10)?,
        input: number(11)?,
        output: number(12)?,
        receive: number(13)?,
        send: number(14)?,
        modifier_input: number(15)?,
        modifier_output: number(16)?,
        alignment: word.get(17)?,
        storage: word.get(18)?,
        collation: number(19)?,
        display: word.get(20)?.replace('~', " "),
    })
}

pub fn all() -> &'static [TypeEntry] {
    &TYPES
}

pub fn by_oid(oid: u32) -> Option<&'static TypeEntry> {
    BY_OID.get(&oid).copied()
}

/// By `typname`.
pub fn by_name(name: &str) -> Option<&'static TypeEntry> {
    BY_NAME.get(name).copied()
}

/// By any name SQL knows it under (`int`, `character varying`, `pg_catalog.int4`, `text[]`), without a modifier.
pub fn by_sql_name(name: &str) -> Option<&'static TypeEntry> {
    let name = name.trim().to_ascii_lowercase().replace('"', "");
    let name = name.strip_prefix("pg_catalog.").unwrap_or(&name).to_owned();
    if let Some(item) = name.strip_suffix("[]") {
        return by_sql_name(item).and_then(|entry| by_oid(entry.array));
    }
    let base = match name.split_once('(') {
        Some((base, _)) => base.trim().to_owned(),
        None => name,
    };
    let alias = match base.as_str() {
        "int" | "integer" => "int4",
        "bigint" => "int8",
        "smallint" => "int2",
        "boolean" => "bool",
        "real" => "float4",
        "double precision" | "float" | "double" => "float8",
        "decimal" => "numeric",
        "character varying" => "varchar",
        "character" => "bpchar",
        "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        "time without time zone" => "time",
        "time with time zone" => "timetz",
        "bit varying" => "varbit",
        other => other,
    };
    by_name(alias)
}

/// What `format_type` answers; `None` stands for a modifier that was NULL.
pub fn format_type(oid: u32, modifier: Option<i32>) -> String {
    if oid == 0 {
        return "-".to_owned();
    }
    let Some(entry) = by_oid(oid) else {
        return "???".to_owned();
    };
    // Vectors have items, and are no arrays.
    if let (true, Some(item)) = (entry.category == "A" && entry.storage != "p", by_oid(entry.element))
        && entry.len == -1
    {
        return format!("{}[]", format_type(item.oid, modifier));
    }
    match (entry.name, modifier.filter(|modifier| *modifier >= 0)) {
        // `character` alone would be read back as character(1).
        ("bpchar", None) if modifier.is_some() => "bpchar".to_owned(),
        ("bpchar", Some(modifier)) => format!("character({})", modifier - 4),
        ("varchar", Some(modifier)) => format!("character varying({})", modifier - 4),
        ("numeric", Some(modifier)) => {
            let packed = modifier - 4;
            format!("numeric({},{})", (packed >> 16) & 0xffff, ((packed & 0x7ff) ^ 1024) - 1024)
        }
        ("timestamp", Some(digits)) => format!("timestamp({digits}) without time zone"),
        ("timestamptz", Some(digits)) => format!("timestamp({digits}) with time zone"),
        ("time", Some(digits)) => format!("time({digits}) without time zone"),
        ("timetz", Some(digits)) => format!("time({digits}) with time zone"),
        ("bit", Some(length)) => format!("bit({length})"),
        ("varbit", Some(length)) => format!("bit varying({length})"),
        _ => entry.display.clone(),
    }
}
