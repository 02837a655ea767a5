//! Results on the screen, as psql shows them.

use super::client::Column;
use bytes::Bytes;
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

/// Column widths are taken from this many rows; what follows is printed as it comes and may stick out.
const ROWS_MEASURED: usize = 5_000;

/// Types whose values are aligned to the right.
fn is_numeric(type_oid: u32) -> bool {
    matches!(type_oid, 20 | 21 | 23 | 26 | 28 | 29 | 700 | 701 | 790 | 1700)
}

type Row = Vec<Option<String>>;

/// When each column gets a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expanded {
    Off,
    On,
    /// For results wider than the screen.
    Auto,
}

/// How results look.
#[derive(Clone, Debug)]
pub struct Style {
    pub expanded: Expanded,
    /// What stands for NULL.
    pub null: String,
    /// Comma-separated values instead of a table.
    pub csv: bool,
}

/// Columns of the terminal on standard output, if it is one.
fn screen_width() -> Option<usize> {
    // SAFETY: winsize is plain data for which all zeroes is a value, and the call only fills it in.
    unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let known = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) == 0 && size.ws_col > 0;
        known.then_some(usize::from(size.ws_col))
    }
}

/// Prints rows as they come.
pub struct TablePrinter<W: Write> {
    out: W,
    columns: Vec<Column>,
    style: Style,
    expanded: bool,
    /// Rows that wait for the widths.
    waiting: Vec<Row>,
    widths: Vec<usize>,
    rows: u64,
    /// Rows printed, for the numbers of the expanded ones.
    printed: u64,
}

fn width(text: &str) -> usize {
    text.width()
}

fn lines_width(text: &str) -> usize {
    text.lines().map(width).max().unwrap_or(0)
}

/// Characters that would move the cursor are shown escaped.
fn printable(bytes: &Bytes) -> String {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return text.into_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => shown.push('\n'),
            '\t' => shown.push_str("    "),
            '\r' => shown.push_str("\\r"),
            c if c.is_control() => shown.push_str(&format!("\\x{:02X}", c as u32)),
            c => shown.push(c),
        }
    }
    shown
}

fn pad(out: &mut impl Write, count: usize) -> io::Result<()> {
    write!(out, "{:count$}", "")
}

impl<W: Write> TablePrinter<W> {
    pub fn new(out: W, columns: Vec<Column>, style: &Style) -> TablePrinter<W> {
        let mut style = style.clone();
        // A plan is a drawing, whose lines belong below each other.
        if matches!(&columns[..], [column] if column.name == "QUERY PLAN") {
            style.expanded = Expanded::Off;
        }
        let expanded = style.expanded == Expanded::On && !style.csv;
        TablePrinter { out, columns, style, expanded, waiting: Vec::new(), widths: Vec::new(), rows: 0, printed: 0 }
    }

    pub fn row(&mut self, values: &[Option<Bytes>]) -> io::Result<()> {
        self.rows += 1;
        if self.style.csv {
            if self.rows == 1 {
                self.write_csv_header()?;
            }
            return self.write_csv(values);
        }
        let null = &self.style.null;
        let shown = |value: &Option<Bytes>| match value {
            Some(value) => Some(printable(value)),
            None => (!null.is_empty()).then(|| null.clone()),
        };
        let row: Row = values.iter().map(shown).collect();
        if self.expanded {
            return self.write_expanded(&row);
        }
        if self.widths.is_empty() {
            self.waiting.push(row);
            return if self.waiting.len() == ROWS_MEASURED { self.begin() } else { Ok(()) };
        }
        self.write_row(&row)
    }

    /// The last rows and the count.
    pub fn finish(mut self) -> io::Result<()> {
        if self.style.csv {
            if self.rows == 0 {
                self.write_csv_header()?;
            }
            return self.out.flush();
        }
        if self.widths.is_empty() && !self.expanded {
            self.begin()?;
        }
        if self.expanded {
            if self.rows == 0 {
                writeln!(self.out, "(0 rows)")?;
            }
            writeln!(self.out)?;
            return self.out.flush();
        }
        writeln!(self.out, "({} row{})\n", self.rows, if self.rows == 1 { "" } else { "s" })?;
        self.out.flush()
    }

    fn begin(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        self.widths = self.columns.iter().map(|column| width(&column.name)).collect();
        for row in &rows {
            for (column, value) in self.widths.iter_mut().zip(row) {
                *column = (*column).max(value.as_deref().map_or(0, lines_width));
            }
        }
        let whole = self.widths.iter().map(|width| width + 3).sum::<usize>().saturating_sub(1);
        if self.style.expanded == Expanded::Auto
            && !rows.is_empty()
            && screen_width().is_some_and(|screen| whole > screen)
        {
            self.expanded = true;
            return rows.iter().try_for_each(|row| self.write_expanded(row));
        }
        let mut rule = String::new();
        for (index, (column, &wanted)) in self.columns.iter().zip(&self.widths).enumerate() {
            let free = wanted - width(&column.name);
            write!(self.out, "{} ", if index == 0 { "" } else { "|" })?;
            pad(&mut self.out, free / 2)?;
            write!(self.out, "{}", column.name)?;
            pad(&mut self.out, free - free / 2)?;
            write!(self.out, " ")?;
            rule.push_str(if index == 0 { "" } else { "+" });
            rule.push_str(&"-".repeat(wanted + 2));
        }
        writeln!(self.out, "\n{rule}")?;
        // A result without columns has rows all the same; nothing of them can be shown.
        if self.columns.is_empty() {
            self.widths.push(0);
        }
        rows.iter().try_for_each(|row| self.write_row(row))
    }

    fn write_row(&mut self, row: &Row) -> io::Result<()> {
        let cells: Vec<Vec<&str>> =
            row.iter().map(|value| value.as_deref().map_or_else(Vec::new, |text| text.split('\n').collect())).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1).max(1);
        for line in 0..height {
            for (index, (cell, column)) in cells.iter().zip(&self.columns).enumerate() {
                let text = cell.get(line).copied().unwrap_or_default();
                let free = self.widths[index].saturating_sub(width(text));
                let last = index + 1 == cells.len();
                let more = line + 1 < cell.len();
                write!(self.out, "{} ", if index == 0 { "" } else { "|" })?;
                if is_numeric(column.type_oid) {
                    pad(&mut self.out, free)?;
                    write!(self.out, "{text}")?;
                } else {
                    write!(self.out, "{text}")?;
                    // No blanks at the end of a line.
                    if !last || more {
                        pad(&mut self.out, free)?;
                    }
                }
                match (more, last) {
                    (true, _) => write!(self.out, "+")?,
                    (false, false) => write!(self.out, " ")?,
                    (false, true) => (),
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn write_expanded(&mut self, row: &Row) -> io::Result<()> {
        let names = self.columns.iter().map(|column| width(&column.name)).max().unwrap_or(0);
        let values = row.iter().flatten().map(|value| lines_width(value)).max().unwrap_or(0);
        self.printed += 1;
        let title = format!("-[ RECORD {} ]", self.printed);
        let rule = (names + values + 3).max(title.len());
        // A value of many screens needs no rule of as many.
        let rule = screen_width().map_or(rule, |screen| rule.min(screen.max(title.len())));
        writeln!(self.out, "{title}{}", "-".repeat(rule - title.len()))?;
        for (column, value) in self.columns.iter().zip(row) {
            let mut lines = value.as_deref().unwrap_or_default().split('\n');
            write!(self.out, "{}", column.name)?;
            pad(&mut self.out, names - width(&column.name))?;
            writeln!(self.out, " | {}", lines.next().unwrap_or_default())?;
            for line in lines {
                pad(&mut self.out, names)?;
                writeln!(self.out, " | {line}")?;
            }
        }
        Ok(())
    }

    fn write_csv_header(&mut self) -> io::Result<()> {
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                self.out.write_all(b",")?;
            }
            write_csv_value(&mut self.out, column.name.as_bytes())?;
        }
        self.out.write_all(b"\n")
    }

    fn write_csv(&mut self, values: &[Option<Bytes>]) -> io::Result<()> {
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.out.write_all(b",")?;
            }
            write_csv_value(&mut self.out, value.as_deref().unwrap_or(self.style.null.as_bytes()))?;
        }
        self.out.write_all(b"\n")
    }
}

fn write_csv_value(out: &mut impl Write, value: &[u8]) -> io::Result<()> {
    if !value.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        return out.write_all(value);
    }
    out.write_all(b"\"")?;
    for part in value.split_inclusive(|byte| *byte == b'"') {
        out.write_all(part)?;
        if part.ends_with(b"\"") {
            out.write_all(b"\"")?;
        }
    }
    out.write_all(b"\"")
}
