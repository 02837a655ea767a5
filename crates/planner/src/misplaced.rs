//! Window functions and aggregates in clauses that take none. Planning such a statement fails in words of its own; these say what is wrong.

use crate::catalog::is_aggregate;
use crate::statement::Command;
use crate::walk::walk;
use datafusion::sql::sqlparser::ast::{self, Expr, JoinConstraint, JoinOperator, SelectItem, SetExpr, Visitor};
use std::ops::ControlFlow;
use tidepool_base::{Error, SqlState};

/// The error of a statement that could not be planned, in better words if it has such a function out of place.
pub fn explained(error: Error, command: &Command) -> Error {
    let may_be = matches!(
        error.code(),
        SqlState::FEATURE_NOT_SUPPORTED
            | SqlState::GROUPING_ERROR
            | SqlState::UNDEFINED_FUNCTION
            | SqlState::DATA_EXCEPTION
            | SqlState::INTERNAL_ERROR
    );
    if !may_be {
        return error;
    }
    let mut clauses = Clauses { found: None };
    match command {
        Command::Query(query) | Command::Locking { query, .. } => {
            let _ = walk(query, &mut clauses);
        }
        Command::Insert(insert, _) => {
            clauses.outputs(insert.returning.as_deref());
            let _ = walk(insert, &mut clauses);
        }
        Command::Update { update, .. } => {
            clauses.outputs(update.returning.as_deref());
            let _ = walk(update, &mut clauses);
        }
        Command::Delete { delete, .. } => {
            clauses.outputs(delete.returning.as_deref());
            let _ = walk(delete, &mut clauses);
        }
        _ => {}
    }
    clauses.found.unwrap_or(error)
}

struct Clauses {
    found: Option<Error>,
}

impl Clauses {
    fn outputs(&mut self, returning: Option<&[SelectItem]>) {
        for item in returning.into_iter().flatten() {
            if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
                self.check(expr, "RETURNING", true);
            }
        }
    }

    /// Whether aggregates are out of place in WHERE and HAVING depends on whose columns they are of: planning knows.
    fn check(&mut self, expr: &Expr, clause: &str, takes_no_aggregate: bool) {
        if self.found.is_some() {
            return;
        }
        let mut calls = Calls { depth: 0, window: false, aggregate: false };
        let _ = walk(expr, &mut calls);
        if calls.window {
            let message = format!("window functions are not allowed in {clause}");
            self.found = Some(Error::new(SqlState::WINDOWING_ERROR, message));
        } else if calls.aggregate && takes_no_aggregate {
            let message = format!("aggregate functions are not allowed in {clause}");
            self.found = Some(Error::new(SqlState::GROUPING_ERROR, message));
        }
    }

    fn body(&mut self, body: &SetExpr) {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left);
                self.body(right);
            }
            SetExpr::Values(values) => {
                for expr in values.rows.iter().flat_map(|row| &row.content) {
                    self.check(expr, "VALUES", true);
                }
            }
            // A query in brackets is visited by itself.
            _ => {}
        }
    }

    fn select(&mut self, select: &ast::Select) {
        if let Some(expr) = &select.selection {
            self.check(expr, "WHERE", false);
        }
        if let Some(expr) = &select.having {
            self.check(expr, "HAVING", false);
        }
        if let ast::GroupByExpr::Expressions(keys, _) = &select.group_by {
            for expr in keys {
                self.check(expr, "GROUP BY", true);
            }
        }
        for join in select.from.iter().flat_map(|from| &from.joins) {
            let (JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint)
            | JoinOperator::Right(constraint)
            | JoinOperator::RightOuter(constraint)
            | JoinOperator::FullOuter(constraint)) = &join.join_operator
            else {
                continue;
            };
            if let JoinConstraint::On(expr) = constraint {
                self.check(expr, "JOIN conditions", true);
            }
        }
    }
}

impl Visitor for Clauses {
    type Break = ();

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
        self.body(&query.body);
        ControlFlow::Continue(())
    }
}

/// What an expression calls, outside of its subqueries.
struct Calls {
    depth: usize,
    window: bool,
    aggregate: bool,
}

impl Visitor for Calls {
    type Break = ();

    fn pre_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        if self.depth == 0 {
            let name = function.name.0.last().and_then(|part| part.as_ident());
            let is_aggregate = name.is_some_and(|name| is_aggregate(&name.value.to_lowercase()));
            self.window |= function.over.is_some();
            self.aggregate |= is_aggregate && function.over.is_none();
        }
        ControlFlow::Continue(())
    }
}
