//! `pg_proc`: PostgreSQL's oids and signatures of the functions there are here, and of every type's in and out functions.

use crate::catalog::objects::{OWNER, PG_CATALOG};
use crate::catalog::relations::Rows;
use crate::catalog::types;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, UInt32Type};
use datafusion::common::Result;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use tidepool_heap::QueryHeap;

#[derive(Debug)]
pub struct Procedure {
    pub oid: u32,
    pub name: &'static str,
    returns: u32,
    args: Vec<u32>,
    /// `prokind`, `provolatile`, `proparallel`, `proretset`, `proisstrict`: a letter each.
    letters: &'static str,
    variadic: u32,
}

static PROCEDURES: LazyLock<Vec<Procedure>> =
    LazyLock::new(|| QueryHeap::outside(|| include_str!("../data/procedures.txt").lines().filter_map(parse).collect()));
static BY_OID: LazyLock<HashMap<u32, &'static Procedure>> =
    LazyLock::new(|| QueryHeap::outside(|| PROCEDURES.iter().map(|procedure| (procedure.oid, procedure)).collect()));

fn parse(line: &'static str) -> Option<Procedure> {
    let mut words = line.split(' ');
    Some(Procedure {
        oid: words.next()?.parse().ok()?,
        name: words.next()?,
        returns: words.next()?.parse().ok()?,
        args: words.next()?.split(',').filter_map(|arg| arg.parse().ok()).collect(),
        letters: words.next()?,
        variadic: words.next()?.parse().ok()?,
    })
}

pub fn by_oid(oid: u32) -> Option<&'static Procedure> {
    BY_OID.get(&oid).copied()
}

/// The first of that name.
pub fn by_name(name: &str) -> Option<&'static Procedure> {
    PROCEDURES.iter().find(|procedure| procedure.name == name)
}

/// How often each name is there.
static NAMED: LazyLock<HashMap<&'static str, usize>> = LazyLock::new(|| {
    QueryHeap::outside(|| {
        let mut named = HashMap::new();
        PROCEDURES.iter().for_each(|procedure| *named.entry(procedure.name).or_default() += 1);
        named
    })
});

/// A value of `regproc`: a name, with its schema if there are several of that name, or a number of no function.
pub fn regproc(oid: u32) -> String {
    match by_oid(oid) {
        None if oid == 0 => "-".to_owned(),
        None => oid.to_string(),
        Some(procedure) if NAMED.get(procedure.name).is_some_and(|count| *count > 1) => {
            format!("pg_catalog.{}", procedure.name)
        }
        Some(procedure) => procedure.name.to_owned(),
    }
}

/// The texts of a column of `regproc`.
pub fn regprocs(oids: &dyn Array) -> Result<ArrayRef> {
    let oids = cast(oids, &DataType::UInt32)?;
    let names = oids.as_primitive::<UInt32Type>().iter().map(|oid| oid.map(regproc));
    Ok(Arc::new(names.collect::<StringViewArray>()))
}

impl Procedure {
    fn letter(&self, index: usize) -> &'static str {
        self.letters.get(index..index + 1).unwrap_or("")
    }

    /// What `pg_get_function_result` answers.
    pub fn result(&self) -> String {
        let set = if self.letter(3) == "t" { "SETOF " } else { "" };
        format!("{set}{}", types::format_type(self.returns, None))
    }

    /// What `pg_get_function_arguments` answers.
    pub fn arguments(&self) -> String {
        let last = self.args.len().wrapping_sub(1);
        let list = self.args.iter().enumerate().map(|(index, &arg)| {
            let variadic = if self.variadic != 0 && index == last { "VARIADIC " } else { "" };
            format!("{variadic}{}", types::format_type(arg, None))
        });
        list.collect::<Vec<_>>().join(", ")
    }
}

pub fn fill(rows: &mut Rows) {
    for procedure in PROCEDURES.iter() {
        rows.push([
            ("oid", procedure.oid.into()),
            ("proname", procedure.name.into()),
            ("pronamespace", PG_CATALOG.into()),
            ("proowner", OWNER.into()),
            ("prolang", 12.into()),
            ("procost", 1.0.into()),
            ("prorows", if procedure.letter(3) == "t" { 1000.0 } else { 0.0 }.into()),
            ("provariadic", procedure.variadic.into()),
            ("prokind", procedure.letter(0).into()),
            ("proleakproof", false.into()),
            ("proisstrict", (procedure.letter(4) == "t").into()),
            ("proretset", (procedure.letter(3) == "t").into()),
            ("provolatile", procedure.letter(1).into()),
            ("proparallel", procedure.letter(2).into()),
            ("pronargs", procedure.args.len().into()),
            ("prorettype", procedure.returns.into()),
            ("proargtypes", procedure.args.clone().into()),
            ("prosrc", procedure.name.into()),
        ]);
    }
}
