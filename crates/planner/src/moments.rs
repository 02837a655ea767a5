//! Literals of times in expressions that are stored: defaults, checks, views.
//!
//! PostgreSQL reads a literal when the expression is made, by that session's zone and clock; here its text is stored, and read
//! when it is used. So what depends on the session is written into the text: a `timestamptz` with its offset, and `now`,
//! `today` and their like as what they were.

use crate::facts::SessionFacts;
use crate::statement::fold;
use crate::types::sql_type;
use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{Expr, Value, VisitMut, VisitorMut};
use std::ops::ControlFlow;
use tidepool_base::{Result, SqlType};
use tidepool_database::text::{TextReader, TextSettings, TextWriter};
use tidepool_table::ColumnDef;

/// Settles the literals that an expression or query says to be times, and those beside one of `columns`.
pub fn settle(facts: &SessionFacts, node: &mut impl VisitMut, columns: &[ColumnDef]) {
    let settings = facts.settings.text_settings();
    let _ = walk_mut(node, &mut Settler { settings, columns });
}

/// Settles an expression that is a literal and no more, of a type.
pub fn settle_literal(facts: &SessionFacts, expr: &mut Expr, sql_type: SqlType) {
    settle_text(&facts.settings.text_settings(), expr, sql_type);
}

struct Settler<'a> {
    settings: TextSettings,
    columns: &'a [ColumnDef],
}

impl Settler<'_> {
    fn type_of_column(&self, expr: &Expr) -> Option<SqlType> {
        let name = match expr {
            Expr::Identifier(name) => name,
            Expr::CompoundIdentifier(names) => names.last()?,
            Expr::Nested(inner) => return self.type_of_column(inner),
            _ => return None,
        };
        let name = fold(name);
        self.columns.iter().find(|column| column.name == name).map(|column| column.sql_type)
    }
}

impl VisitorMut for Settler<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { expr: inner, data_type, .. } => {
                if let Ok(sql_type) = sql_type(data_type) {
                    settle_text(&self.settings, inner, sql_type);
                }
            }
            Expr::TypedString(typed) => {
                if let Ok(sql_type) = sql_type(&typed.data_type)
                    && let Value::SingleQuotedString(text) = &mut typed.value.value
                    && let Some(settled) = settled(&self.settings, text, sql_type)
                {
                    *text = settled;
                }
            }
            Expr::BinaryOp { left, right, .. } => {
                if let Some(sql_type) = self.type_of_column(left) {
                    settle_text(&self.settings, right, sql_type);
                } else if let Some(sql_type) = self.type_of_column(right) {
                    settle_text(&self.settings, left, sql_type);
                }
            }
            Expr::Between { expr, low, high, .. } => {
                if let Some(sql_type) = self.type_of_column(expr) {
                    settle_text(&self.settings, low, sql_type);
                    settle_text(&self.settings, high, sql_type);
                }
            }
            Expr::InList { expr, list, .. } => {
                if let Some(sql_type) = self.type_of_column(expr) {
                    list.iter_mut().for_each(|item| settle_text(&self.settings, item, sql_type));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn settle_text(settings: &TextSettings, expr: &mut Expr, sql_type: SqlType) {
    let text = match expr {
        Expr::Nested(inner) => return settle_text(settings, inner, sql_type),
        Expr::Value(value) => match &mut value.value {
            Value::SingleQuotedString(text) => text,
            _ => return,
        },
        _ => return,
    };
    if let Some(settled) = settled(settings, text, sql_type) {
        *text = settled;
    }
}

/// The text of the same moment that means it in every session; `None` for one that does already, or that is none.
fn settled(settings: &TextSettings, text: &str, sql_type: SqlType) -> Option<String> {
    let depends = match sql_type {
        SqlType::TimestampTz { .. } => true,
        SqlType::Timestamp { .. } | SqlType::Date => {
            let lower = text.to_ascii_lowercase();
            ["now", "today", "tomorrow", "yesterday"].iter().any(|word| lower.contains(word))
        }
        _ => false,
    };
    if !depends {
        return None;
    }
    let read = || -> Result<Option<String>> {
        let sql_type = sql_type.without_precision();
        let mut reader = TextReader::new(sql_type, settings);
        reader.append(text)?;
        let mut out = Vec::new();
        TextWriter::new(&reader.finish(), sql_type, settings)?.write(0, &mut out);
        Ok(String::from_utf8(out).ok())
    };
    read().ok().flatten()
}
