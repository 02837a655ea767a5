//! TPC-DS: rows and schema from `tpcdsgen` (the same rows as `dsdgen` makes), and the 99 queries.

use crate::workload::{BatchSource, QuerySpec, TableSpec, Workload};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use tidepool_base::{Error, Result};
use tpcdsgen::config::{Session, SessionBuilder, Table};

/// Tables below this many rows are made by one thread.
const DIVISIBLE_ROWS_MIN: u64 = 1_000_000;

/// A table, its primary key as the specification declares it, its generator's schema, and how many rows a row of the
/// generator's count stands for (a sale has about twelve, nine or eleven lines; a tenth of the lines come back).
macro_rules! tables {
    ($($table:ident $arrow:ident ($key:literal) $lines:literal;)*) => {
        const TABLES: &[(Table, &str, fn() -> SchemaRef, f64)] =
            &[$((Table::$table, $key, tpcdsgen_arrow::$arrow::schema_ref, $lines)),*];

        fn batches(table: Table, session: Session) -> BatchSource {
            let rows = session.get_source_row_range(table);
            if rows.is_empty() {
                return Box::new(std::iter::empty());
            }
            match table {
                $(Table::$table => {
                    let generator = tpcdsgen_arrow::$arrow::new(session).with_source_row_range(*rows.start(), *rows.end());
                    // The generator recycles a batch's buffers once nothing else holds them.
                    boxed(generator)
                })*
            }
        }
    };
}

tables! {
    CallCenter CallCenterArrow ("cc_call_center_sk") 1.0;
    CatalogPage CatalogPageArrow ("cp_catalog_page_sk") 1.0;
    CatalogReturns CatalogReturnsArrow ("cr_item_sk, cr_order_number") 0.9;
    CatalogSales CatalogSalesArrow ("cs_item_sk, cs_order_number") 9.0;
    Customer CustomerArrow ("c_customer_sk") 1.0;
    CustomerAddress CustomerAddressArrow ("ca_address_sk") 1.0;
    CustomerDemographics CustomerDemographicsArrow ("cd_demo_sk") 1.0;
    DateDim DateDimArrow ("d_date_sk") 1.0;
    DbgenVersion DbgenVersionArrow ("") 1.0;
    HouseholdDemographics HouseholdDemographicsArrow ("hd_demo_sk") 1.0;
    IncomeBand IncomeBandArrow ("ib_income_band_sk") 1.0;
    Inventory InventoryArrow ("inv_date_sk, inv_item_sk, inv_warehouse_sk") 1.0;
    Item ItemArrow ("i_item_sk") 1.0;
    Promotion PromotionArrow ("p_promo_sk") 1.0;
    Reason ReasonArrow ("r_reason_sk") 1.0;
    ShipMode ShipModeArrow ("sm_ship_mode_sk") 1.0;
    Store StoreArrow ("s_store_sk") 1.0;
    StoreReturns StoreReturnsArrow ("sr_item_sk, sr_ticket_number") 1.2;
    StoreSales StoreSalesArrow ("ss_item_sk, ss_ticket_number") 12.0;
    TimeDim TimeDimArrow ("t_time_sk") 1.0;
    Warehouse WarehouseArrow ("w_warehouse_sk") 1.0;
    WebPage WebPageArrow ("wp_web_page_sk") 1.0;
    WebReturns WebReturnsArrow ("wr_item_sk, wr_order_number") 1.2;
    WebSales WebSalesArrow ("ws_item_sk, ws_order_number") 12.0;
    WebSite WebSiteArrow ("web_site_sk") 1.0;
}

macro_rules! queries {
    ($($number:literal)*) => { [$(include_str!(concat!("queries/q", $number, ".sql"))),*] };
}

const QUERIES: [&str; 99] = queries!(
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42
    43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81
    82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99
);

pub fn workload(scale_factor: f64) -> Result<Workload> {
    let scaling = session(scale_factor, 0, 1)?;
    let mut tables: Vec<TableSpec> = TABLES
        .iter()
        .map(|&(table, key, schema, lines)| {
            let source_rows = scaling.get_scaling().get_row_count(table);
            TableSpec {
                name: table.get_name().to_owned(),
                ddl: ddl(table.get_name(), &schema(), key),
                rows: (source_rows as f64 * lines) as u64,
                divisible: source_rows >= DIVISIBLE_ROWS_MIN,
            }
        })
        .collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.rows));
    let queries =
        QUERIES.iter().enumerate().map(|(index, &sql)| QuerySpec { name: format!("q{}", index + 1), sql }).collect();
    Ok(Workload { name: "tpcds", title: "TPC-DS", scale_factor, tables, queries, source, prepare: || Box::new(()) })
}

fn source(name: &str, scale_factor: f64, part: usize, parts: usize) -> Result<BatchSource> {
    let Some(&(table, ..)) = TABLES.iter().find(|(table, ..)| table.get_name() == name) else {
        return Err(Error::internal(format!("TPC-DS has no table \"{name}\"")));
    };
    Ok(batches(table, session(scale_factor, part, parts)?))
}

fn session(scale_factor: f64, part: usize, parts: usize) -> Result<Session> {
    SessionBuilder::new()
        .with_scale_factor(scale_factor)
        .with_chunk_number(part as i32 + 1)
        .with_total_chunks(parts as i32)
        .build()
        .map_err(|error| Error::internal(format!("could not set up the TPC-DS generator: {error}")))
}

fn boxed(batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static) -> BatchSource {
    Box::new(batches.map(|batch| batch.map_err(|error| Error::internal(format!("could not generate rows: {error}")))))
}

/// The table as the generator's schema has it: surrogate keys and counts are integers, money is decimal, text is varchar.
fn ddl(name: &str, schema: &SchemaRef, key: &str) -> String {
    let mut columns: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| {
            let sql_type = match field.data_type() {
                DataType::Int32 => "integer".to_owned(),
                DataType::Int64 => "bigint".to_owned(),
                DataType::Date32 => "date".to_owned(),
                DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
                _ => "varchar".to_owned(),
            };
            format!("{} {sql_type}{}", field.name(), if field.is_nullable() { "" } else { " NOT NULL" })
        })
        .collect();
    if !key.is_empty() {
        columns.push(format!("PRIMARY KEY ({key})"));
    }
    format!("CREATE TABLE {name} ({})", columns.join(", "))
}
