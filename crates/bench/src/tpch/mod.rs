//! TPC-H: the specification's schema and queries, rows from `tpchgen` (the same bytes as `dbgen` makes), answers from
//! the specification's answer set.

pub mod answers;
pub mod streams;
mod text;

use crate::workload::{BatchSource, QuerySpec, TableSpec, Workload};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use std::any::Any;
use tidepool_base::{Error, Result};
use tpchgen::distribution::Distributions;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

/// Name, rows at scale factor 1, whether the rows grow with it, columns. Largest first: loading starts with those.
const TABLES: [(&str, u64, bool, &str); 8] = [
    (
        "lineitem",
        6_001_215,
        true,
        "l_orderkey bigint NOT NULL, l_partkey bigint NOT NULL, l_suppkey bigint NOT NULL, l_linenumber integer NOT NULL, \
         l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL, \
         l_tax decimal(15,2) NOT NULL, l_returnflag char(1) NOT NULL, l_linestatus char(1) NOT NULL, \
         l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL, \
         l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL, l_comment varchar(44) NOT NULL, \
         PRIMARY KEY (l_orderkey, l_linenumber)",
    ),
    (
        "orders",
        1_500_000,
        true,
        "o_orderkey bigint NOT NULL, o_custkey bigint NOT NULL, o_orderstatus char(1) NOT NULL, \
         o_totalprice decimal(15,2) NOT NULL, o_orderdate date NOT NULL, o_orderpriority char(15) NOT NULL, \
         o_clerk char(15) NOT NULL, o_shippriority integer NOT NULL, o_comment varchar(79) NOT NULL, \
         PRIMARY KEY (o_orderkey)",
    ),
    (
        "partsupp",
        800_000,
        true,
        "ps_partkey bigint NOT NULL, ps_suppkey bigint NOT NULL, ps_availqty integer NOT NULL, \
         ps_supplycost decimal(15,2) NOT NULL, ps_comment varchar(199) NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey)",
    ),
    (
        "part",
        200_000,
        true,
        "p_partkey bigint NOT NULL, p_name varchar(55) NOT NULL, p_mfgr char(25) NOT NULL, p_brand char(10) NOT NULL, \
         p_type varchar(25) NOT NULL, p_size integer NOT NULL, p_container char(10) NOT NULL, \
         p_retailprice decimal(15,2) NOT NULL, p_comment varchar(23) NOT NULL, PRIMARY KEY (p_partkey)",
    ),
    (
        "customer",
        150_000,
        true,
        "c_custkey bigint NOT NULL, c_name varchar(25) NOT NULL, c_address varchar(40) NOT NULL, \
         c_nationkey bigint NOT NULL, c_phone char(15) NOT NULL, c_acctbal decimal(15,2) NOT NULL, \
         c_mktsegment char(10) NOT NULL, c_comment varchar(117) NOT NULL, PRIMARY KEY (c_custkey)",
    ),
    (
        "supplier",
        10_000,
        true,
        "s_suppkey bigint NOT NULL, s_name char(25) NOT NULL, s_address varchar(40) NOT NULL, \
         s_nationkey bigint NOT NULL, s_phone char(15) NOT NULL, s_acctbal decimal(15,2) NOT NULL, \
         s_comment varchar(101) NOT NULL, PRIMARY KEY (s_suppkey)",
    ),
    (
        "nation",
        25,
        false,
        "n_nationkey bigint NOT NULL, n_name char(25) NOT NULL, n_regionkey bigint NOT NULL, n_comment varchar(152), \
         PRIMARY KEY (n_nationkey)",
    ),
    (
        "region",
        5,
        false,
        "r_regionkey bigint NOT NULL, r_name char(25) NOT NULL, r_comment varchar(152), PRIMARY KEY (r_regionkey)",
    ),
];

macro_rules! queries {
    ($($number:literal)*) => { [$(include_str!(concat!("queries/q", $number, ".sql"))),*] };
}

/// The 22 queries with the specification's validation parameters, Q15 with a common table expression in place of a view.
const QUERIES: [&str; 22] = queries!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22);

pub fn workload(scale_factor: f64) -> Workload {
    let tables = TABLES
        .iter()
        .map(|&(name, rows, grows, columns)| TableSpec {
            name: name.to_owned(),
            ddl: format!("CREATE TABLE {name} ({columns})"),
            rows: if grows { (rows as f64 * scale_factor).round() as u64 } else { rows },
            // Below this a part is not worth a thread.
            divisible: grows && rows as f64 * scale_factor >= 100_000.0,
        })
        .collect();
    let queries =
        QUERIES.iter().enumerate().map(|(index, &sql)| QuerySpec { name: format!("q{}", index + 1), sql }).collect();
    let prepare = || -> Box<dyn Any + Send> { Box::new(text::Text::get()) };
    Workload { name: "tpch", title: "TPC-H", scale_factor, tables, queries, source, prepare }
}

fn source(table: &str, scale_factor: f64, part: usize, parts: usize) -> Result<BatchSource> {
    let (part, parts) = (part as i32 + 1, parts as i32);
    macro_rules! rows {
        ($arrow:ident, $generator:ident) => {{
            let rows = text::generate(|pool| {
                let words = Distributions::static_default();
                $arrow::new($generator::new_with_distributions_and_text_pool(scale_factor, part, parts, words, pool))
            });
            Box::new(rows.map(batch)) as BatchSource
        }};
    }
    fn batch(generated: Result<RecordBatch, ArrowError>) -> Result<RecordBatch> {
        generated.map_err(|error| Error::internal(format!("could not generate rows: {error}")))
    }
    Ok(match table {
        "lineitem" => rows!(LineItemArrow, LineItemGenerator),
        "orders" => rows!(OrderArrow, OrderGenerator),
        "partsupp" => {
            let generator = |pool| PartSuppGenerator::new_with_text_pool(scale_factor, part, parts, pool);
            Box::new(text::generate(|pool| PartSuppArrow::new(generator(pool))).map(batch))
        }
        "part" => rows!(PartArrow, PartGenerator),
        "customer" => rows!(CustomerArrow, CustomerGenerator),
        "supplier" => rows!(SupplierArrow, SupplierGenerator),
        // These two come in one part at every scale.
        "nation" => {
            let words = Distributions::static_default();
            let generator = |pool| NationGenerator::new_with_distributions_and_text_pool(words, pool);
            Box::new(text::generate(|pool| NationArrow::new(generator(pool))).map(batch))
        }
        "region" => {
            let words = Distributions::static_default();
            let generator = |pool| RegionGenerator::new_with_distributions_and_text_pool(words, pool);
            Box::new(text::generate(|pool| RegionArrow::new(generator(pool))).map(batch))
        }
        _ => return Err(Error::internal(format!("TPC-H has no table \"{table}\""))),
    })
}
