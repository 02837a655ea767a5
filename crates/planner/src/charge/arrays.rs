//! Where a batch's values lie.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use std::ops::Range;

/// Calls `each` with the addresses of a column's values, in the order in which they are stored. Bytes of strings that lie
/// apart from their views are taken from the start of each buffer, as many as the column refers to.
pub fn ranges(column: &ArrayRef, each: &mut impl FnMut(Range<usize>)) {
    match column.data_type() {
        DataType::Utf8View => {
            views(&column.to_data(), column.as_string_view().total_buffer_bytes_used(), each);
        }
        DataType::BinaryView => {
            views(&column.to_data(), column.as_binary_view().total_buffer_bytes_used(), each);
        }
        _ => data_ranges(&column.to_data(), each),
    }
}

fn views(data: &ArrayData, bytes_used: usize, each: &mut impl FnMut(Range<usize>)) {
    let [views, bytes @ ..] = data.buffers() else { return };
    let start = views.as_ptr().addr() + data.offset() * size_of::<u128>();
    each(start..start + data.len() * size_of::<u128>());
    let bytes_total: usize = bytes.iter().map(|buffer| buffer.len()).sum();
    let share = (bytes_used as f64 / bytes_total.max(1) as f64).min(1.0);
    for buffer in bytes {
        let start = buffer.as_ptr().addr();
        each(start..start + (buffer.len() as f64 * share) as usize);
    }
    nulls(data, each);
}

fn data_ranges(data: &ArrayData, each: &mut impl FnMut(Range<usize>)) {
    let width = data.data_type().primitive_width();
    for buffer in data.buffers() {
        let start = buffer.as_ptr().addr();
        match width {
            Some(width) => {
                let start = start + data.offset() * width;
                each(start..start + data.len() * width);
            }
            None => each(start..start + buffer.len()),
        }
    }
    nulls(data, each);
    data.child_data().iter().for_each(|child| data_ranges(child, each));
}

fn nulls(data: &ArrayData, each: &mut impl FnMut(Range<usize>)) {
    if let Some(nulls) = data.nulls() {
        let start = nulls.buffer().as_ptr().addr();
        each(start..start + nulls.buffer().len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, Int64Array, StringArray, StringViewArray};
    use std::sync::Arc;

    fn lens(column: ArrayRef) -> Vec<usize> {
        let mut lens = Vec::new();
        ranges(&column, &mut |range| lens.push(range.len()));
        lens
    }

    #[test]
    fn all_values_are_found_and_none_twice() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        assert_eq!(lens(numbers.clone()), [800]);
        let mut sliced = Vec::new();
        ranges(&numbers.slice(10, 5), &mut |range| sliced.push(range));
        let start = numbers.to_data().buffers()[0].as_ptr().addr() + 80;
        assert_eq!((sliced.len(), &sliced[0]), (1, &(start..start + 40)));
        assert_eq!(lens(Arc::new(Int64Array::from(vec![Some(1), None]))).len(), 2);
        assert_eq!(lens(Arc::new(BooleanArray::from(vec![true; 80]))), [10]);
        assert_eq!(lens(Arc::new(StringArray::from(vec!["ab", "c"]))), [12, 3]);
    }

    #[test]
    fn of_strings_that_lie_apart_only_those_referred_to() {
        let long = "x".repeat(50);
        let strings = StringViewArray::from_iter_values([long.as_str(), "short", long.as_str(), long.as_str()]);
        let all: ArrayRef = Arc::new(strings);
        assert_eq!(lens(all.clone())[0], 64);
        assert_eq!(lens(all.clone())[1..].iter().sum::<usize>(), 150);
        assert_eq!(lens(all.slice(0, 2))[1..].iter().sum::<usize>(), 50);
    }
}
