//! Answers of a server, or of a database in this process, for commands that show them their own way.

use crate::sql::client::{Client, Event};
use tidepool_base::Result;

/// The rows of a query, as text.
pub struct Rows {
    pub names: Vec<String>,
    pub rows: Vec<Vec<Option<String>>>,
}

impl Rows {
    pub fn text(&self, row: usize, name: &str) -> Option<&str> {
        let column = self.names.iter().position(|known| known == name)?;
        self.rows.get(row)?.get(column)?.as_deref()
    }

    pub fn number(&self, row: usize, name: &str) -> f64 {
        self.text(row, name).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }
}

pub async fn query(client: &mut Client, sql: &str) -> Result<Rows> {
    let mut rows = Rows { names: Vec::new(), rows: Vec::new() };
    let mut failure = None;
    client.query(sql).await?;
    loop {
        match client.event().await? {
            Event::Columns(columns) => rows.names = columns.into_iter().map(|column| column.name).collect(),
            Event::Row(values) => {
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                rows.rows.push(values.iter().map(|value| value.as_deref().map(text)).collect());
            }
            Event::Failed(report) => failure = Some(report.into_error()),
            Event::Ready => return failure.map_or(Ok(rows), Err),
            _ => {}
        }
    }
}

pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
