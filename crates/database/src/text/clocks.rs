//! Instants (`timestamptz`) as what a clock shows, and back, in the zone of a session.

use super::Zone;
use super::calendar::{US_PER_DAY, US_PER_SECOND};
use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, TimestampMicrosecondType};
use arrow_array::{ArrayRef, Date32Array, PrimitiveArray, Time64NanosecondArray, TimestampMicrosecondArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};

/// Whether values of one type are instants, and of the other what a clock shows.
pub fn crosses_clocks(from: &DataType, to: &DataType) -> bool {
    use DataType::{Date32, Time64, Timestamp};
    matches!(
        (from, to),
        (Timestamp(_, Some(_)), Timestamp(_, None) | Date32 | Time64(_))
            | (Timestamp(_, None) | Date32, Timestamp(_, Some(_)))
    )
}

/// Values of a type as those of the other, by the clock in `zone`, for types that [`crosses_clocks`] names. 22008 where there is none.
pub fn cross_clocks(array: &ArrayRef, target: &DataType, zone: Zone) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::Timestamp(_, Some(_)) => readings(array, target, zone),
        _ => instants(array, target, zone),
    }
}

fn out_of_range() -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range")
}

fn cast(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, target, &options).map_err(|_| out_of_range())
}

/// What the clock shows at instants: its whole reading, the day or the time of it.
fn readings(array: &ArrayRef, target: &DataType, zone: Zone) -> Result<ArrayRef> {
    let instants = cast(array, &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())))?;
    let instants = instants.as_primitive::<TimestampMicrosecondType>();
    let reading = |instant: i64| {
        let offset = i64::from(zone.offset_at_utc(instant)) * US_PER_SECOND;
        instant.checked_add(offset).ok_or_else(out_of_range)
    };
    let readings: ArrayRef = match target {
        DataType::Date32 => {
            let days: Date32Array =
                instants.try_unary(|instant| reading(instant).map(|us| us.div_euclid(US_PER_DAY) as i32))?;
            Arc::new(days)
        }
        DataType::Time64(_) => {
            let times: Time64NanosecondArray =
                instants.try_unary(|instant| reading(instant).map(|us| us.rem_euclid(US_PER_DAY) * 1_000))?;
            Arc::new(times)
        }
        _ => {
            let stamps: TimestampMicrosecondArray = instants.try_unary(reading)?;
            Arc::new(stamps)
        }
    };
    cast(&readings, target)
}

/// The instants at which the clock shows readings, or days begin by it.
fn instants(array: &ArrayRef, target: &DataType, zone: Zone) -> Result<ArrayRef> {
    let instant = |reading: i64| {
        let offset = i64::from(zone.offset_at_local(reading)) * US_PER_SECOND;
        reading.checked_sub(offset).ok_or_else(out_of_range)
    };
    let instants: PrimitiveArray<TimestampMicrosecondType> = match array.data_type() {
        DataType::Date32 => array
            .as_primitive::<Date32Type>()
            .try_unary(|day| i64::from(day).checked_mul(US_PER_DAY).ok_or_else(out_of_range).and_then(instant))?,
        _ => {
            let readings = cast(array, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
            readings.as_primitive::<TimestampMicrosecondType>().try_unary(instant)?
        }
    };
    let instants: ArrayRef = Arc::new(instants.with_timezone("UTC"));
    cast(&instants, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TextReader, TextSettings, TextWriter};
    use tidepool_base::SqlType;

    fn crossed(zone: &str, from: SqlType, to: SqlType, text: &str) -> String {
        let (settings, utc) =
            (TextSettings { time_zone: zone.to_owned(), ..Default::default() }, TextSettings::default());
        let mut reader = TextReader::new(from, &utc);
        reader.append(text).unwrap();
        let target = tidepool_table::arrow_type(to);
        let crossed = cross_clocks(&reader.finish(), &target, settings.zone().unwrap()).unwrap();
        let mut out = Vec::new();
        assert!(TextWriter::new(&crossed, to, &utc).unwrap().write(0, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn clocks_are_those_of_the_zone() {
        use SqlType::Date;
        let (zoned, plain) = (SqlType::TIMESTAMPTZ, SqlType::TIMESTAMP);
        let chicago = "America/Chicago";
        assert_eq!(crossed(chicago, zoned, plain, "2024-07-01 03:00+00"), "2024-06-30 22:00:00");
        assert_eq!(crossed(chicago, zoned, Date, "2024-07-01 03:00+00"), "2024-06-30");
        assert_eq!(crossed(chicago, plain, zoned, "2024-01-01 00:00"), "2024-01-01 06:00:00+00");
        assert_eq!(crossed(chicago, Date, zoned, "2024-07-01"), "2024-07-01 05:00:00+00");
        // Twice on that day, and never on that one.
        assert_eq!(crossed(chicago, plain, zoned, "2024-11-03 01:30"), "2024-11-03 07:30:00+00");
        assert_eq!(crossed(chicago, plain, zoned, "2024-03-10 02:30"), "2024-03-10 08:30:00+00");
        assert_eq!(crossed("<+05:30>-05:30", zoned, plain, "1969-12-31 20:00+00"), "1970-01-01 01:30:00");
    }
}
