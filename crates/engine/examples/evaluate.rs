//! Nanoseconds a row that expressions take: `cargo run --release -p tidepool-engine --example evaluate [NAME]`.

use arrow_buffer::Buffer;
use arrow_schema::DataType;
use std::hint::black_box;
use std::time::Instant;
use tidepool_engine::evaluate::Prepared;
use tidepool_engine::expr::{ArithmeticOp, DatePart, Expr, Pattern, Scalar};
use tidepool_engine::text::{Owners, Text};
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{CHUNK_ROWS, Chunk, Texts, Values, Vector};
use tidepool_table::CompareOp;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn ints(state: &mut u64, lower: i64, upper: i64) -> Vector {
    let span = (upper - lower + 1) as u64;
    Vector::ints((0..CHUNK_ROWS).map(|_| lower + (random(state) % span) as i64).collect())
}

/// Words as in TPC-H's comments.
fn texts(state: &mut u64) -> Vector {
    const WORDS: [&str; 12] = [
        "special",
        "pending",
        "requests",
        "carefully",
        "deposits",
        "quickly",
        "accounts",
        "the",
        "ironic",
        "packages",
        "sleep",
        "furiously",
    ];
    let rows: Vec<String> = (0..CHUNK_ROWS)
        .map(|_| (0..7).map(|_| WORDS[(random(state) % 12) as usize]).collect::<Vec<_>>().join(" "))
        .collect();
    let buffer = Buffer::from(rows.concat().into_bytes());
    let mut start = 0;
    let values = rows.iter().map(|row| {
        let end = start + row.len();
        // SAFETY: the buffer becomes the owner.
        let text = unsafe { Text::new(&buffer[start..end]) };
        start = end;
        text
    });
    let values = values.collect();
    // SAFETY: as above.
    Vector { values: Values::Text(unsafe { Texts::new(values, Owners::of(vec![buffer])) }), valid: None }
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let decimal = |lower, upper| ColumnType::new(DataType::Decimal128(12, 2), false).within((lower, upper));
    let types = [
        decimal(90_000, 10_494_950),
        decimal(0, 10),
        decimal(0, 8),
        ColumnType::new(DataType::Date32, false).within((8035, 10_591)),
        ColumnType::new(DataType::Utf8View, false),
        ColumnType::new(DataType::Int64, false),
        ColumnType::new(DataType::Date32, false),
        ColumnType::new(DataType::Float64, false),
        ColumnType::new(DataType::Int32, false),
    ];
    let floats = (0..CHUNK_ROWS).map(|_| (random(&mut state) % 1000) as f64 / 8.0).collect();
    let columns = vec![
        ints(&mut state, 90_000, 10_494_950),
        ints(&mut state, 0, 10),
        ints(&mut state, 0, 8),
        ints(&mut state, 8035, 10_591),
        texts(&mut state),
        ints(&mut state, -1_000_000_000_000, 1_000_000_000_000),
        ints(&mut state, 8035, 10_591),
        Vector { values: Values::Float(floats), valid: None },
        ints(&mut state, 1, 40_000),
    ];
    let chunk = Chunk::new(CHUNK_ROWS, columns);
    let column = |index: usize| Expr::column(index, types[index].clone());
    let int = |value: i64, of: DataType| Expr::literal(Scalar::Int(value), of);
    let hundred = || int(100, DataType::Decimal128(12, 2));
    let two = DataType::Decimal128(38, 2);
    let compare = |op, left, right| Expr::compare(op, left, right).unwrap();
    let arithmetic = |op, left, right, of| Expr::arithmetic(op, left, right, of).unwrap();
    let discounted = || {
        let rate = arithmetic(ArithmeticOp::Subtract, hundred(), column(1), two.clone());
        arithmetic(ArithmeticOp::Multiply, column(0), rate, DataType::Decimal128(38, 4))
    };
    let taxed = arithmetic(ArithmeticOp::Add, hundred(), column(2), two.clone());
    let like = |pattern: &str| column(4).like(Pattern::parse(pattern, None, false).unwrap(), false).unwrap();
    let is_early = || compare(CompareOp::Lt, column(3), int(9000, DataType::Date32));
    let is_cheap = || compare(CompareOp::Lt, column(0), int(1_000_000, DataType::Decimal128(12, 2)));
    let literals = |values: &[i64]| values.iter().map(|value| Scalar::Int(*value)).collect::<Vec<_>>();
    let expressions = [
        ("int < constant", is_early()),
        ("int < int", compare(CompareOp::Lt, column(3), column(6))),
        ("float < constant", compare(CompareOp::Lt, column(7), Expr::literal(Scalar::Float(60.0), DataType::Float64))),
        (
            "and of three, 1% left",
            Expr::and(vec![
                is_early(),
                is_cheap(),
                compare(CompareOp::Eq, column(1), int(3, DataType::Decimal128(12, 2))),
            ]),
        ),
        ("a * (100 - b)", discounted()),
        (
            "a * (100 - b) * (100 + c)",
            arithmetic(ArithmeticOp::Multiply, discounted(), taxed, DataType::Decimal128(38, 6)),
        ),
        ("bigint + bigint, checked", arithmetic(ArithmeticOp::Add, column(5), column(8), DataType::Int64)),
        ("bigint * bigint, checked", arithmetic(ArithmeticOp::Multiply, column(5), column(8), DataType::Int64)),
        ("integer + integer, checked", arithmetic(ArithmeticOp::Add, column(8), column(8), DataType::Int32)),
        ("integer * integer, checked", arithmetic(ArithmeticOp::Multiply, column(8), column(8), DataType::Int32)),
        ("integer / 7", arithmetic(ArithmeticOp::Divide, column(8), int(7, DataType::Int32), DataType::Int32)),
        ("float * float", arithmetic(ArithmeticOp::Multiply, column(7), column(7), DataType::Float64)),
        ("in 4 integers", column(8).in_list(literals(&[3, 500, 70_000, 9]), false).unwrap()),
        (
            "in 20 near integers",
            column(1).in_list((0..20).map(|value| Scalar::Int(value * 3)).collect(), false).unwrap(),
        ),
        (
            "in 20 far integers",
            column(8).in_list((0..20).map(|value| Scalar::Int(value * 50_000)).collect(), false).unwrap(),
        ),
        (
            "text = 'short'",
            compare(CompareOp::Eq, column(4), Expr::literal(Scalar::Text((*b"special").into()), DataType::Utf8View)),
        ),
        (
            "text < 'short'",
            compare(CompareOp::Lt, column(4), Expr::literal(Scalar::Text((*b"pending").into()), DataType::Utf8View)),
        ),
        ("text < text", compare(CompareOp::Lt, column(4), column(4))),
        ("like 'special%'", like("special%")),
        ("like '%special'", like("%special")),
        ("like '%special%'", like("%special%")),
        ("like '%special%requests%'", like("%special%requests%")),
        ("like '%sp_cial%'", like("%sp_cial%")),
        ("substring(text, 1, 2)", column(4).substring(1, Some(2)).unwrap()),
        (
            "case when then 1 else 0",
            Expr::case(vec![(is_early(), int(1, DataType::Int32))], Some(int(0, DataType::Int32))).unwrap(),
        ),
        (
            "case when then a*(100-b) else 0",
            Expr::case(vec![(is_early(), discounted())], Some(int(0, DataType::Decimal128(38, 4)))).unwrap(),
        ),
        (
            "case when 1% then a*(100-b) else 0",
            Expr::case(
                vec![(compare(CompareOp::Lt, column(3), int(8060, DataType::Date32)), discounted())],
                Some(int(0, DataType::Decimal128(38, 4))),
            )
            .unwrap(),
        ),
        ("case when then int else int", Expr::case(vec![(is_early(), column(3))], Some(column(6))).unwrap()),
        ("year of a date, narrow", Expr::part(DatePart::Year, column(3), DataType::Int32).unwrap()),
        ("year of a date", Expr::part(DatePart::Year, column(6), DataType::Int32).unwrap()),
        ("month of a date", Expr::part(DatePart::Month, column(6), DataType::Int32).unwrap()),
        ("bigint::float8", column(5).cast(DataType::Float64).unwrap()),
        ("float8::bigint", column(7).cast(DataType::Int64).unwrap()),
        ("bigint::numeric", column(5).cast(DataType::Decimal128(20, 0)).unwrap()),
    ];
    let mut sum = 0.0;
    for (name, expr) in expressions {
        if !name.contains(wanted.as_str()) {
            continue;
        }
        let prepared = Prepared::new(&expr).unwrap();
        let is_condition = expr.of.data_type == DataType::Boolean;
        let mut least = f64::MAX;
        for _ in 0..60 {
            const TIMES: usize = 100;
            let start = Instant::now();
            for _ in 0..TIMES {
                if is_condition {
                    black_box(prepared.select(black_box(&chunk)).unwrap());
                } else {
                    black_box(prepared.evaluate(black_box(&chunk)).unwrap());
                }
            }
            least = least.min(start.elapsed().as_nanos() as f64 / (TIMES * CHUNK_ROWS) as f64);
        }
        sum += least;
        println!("{least:8.3} ns  {name}");
    }
    println!("{sum:8.3} ns  in all");
    for percent in [1, 10, 50, 90] {
        let mask = tidepool_engine::mask::Mask::from_fn(CHUNK_ROWS, |_| random(&mut state) % 100 < percent);
        let time = |work: &dyn Fn()| {
            let once = |_| {
                let start = Instant::now();
                (0..100).for_each(|_| work());
                start.elapsed().as_nanos() as f64 / (100 * CHUNK_ROWS) as f64
            };
            (0..60).map(once).fold(f64::MAX, f64::min)
        };
        let positions = time(&|| drop(black_box(black_box(&mask).positions())));
        let rows = mask.positions();
        let gather = time(&|| drop(black_box(chunk.columns[0].gather(black_box(&rows)))));
        println!("{positions:8.3} ns  positions, {gather:.3} ns  gather of {percent}%, a row of the chunk");
    }
}
