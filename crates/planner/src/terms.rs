//! What PostgreSQL refuses of recursive terms: aggregates over the rows that are being made, which would never end.

use crate::statement::fold;
use crate::walk::walk;
use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    Expr, Query, Select, SetExpr, SetOperator, TableFactor, TableWithJoins, Visitor,
};
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, SqlState};

/// 42P19 for an aggregate in a query that reads the rows of the recursive query whose term it is part of.
pub fn check(query: &Query, state: &SessionState) -> Result<()> {
    match walk(query, &mut Queries { state }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Queries<'s> {
    state: &'s SessionState,
}

impl Visitor for Queries<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let Some(with) = query.with.as_ref().filter(|with| with.recursive) else { return ControlFlow::Continue(()) };
        for cte in &with.cte_tables {
            if let SetExpr::SetOperation { op: SetOperator::Union, right, .. } = cte.query.body.as_ref() {
                walk(right, &mut Term { name: fold(&cte.alias.name), state: self.state })?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// The recursive term of a query of this name.
struct Term<'s> {
    name: String,
    state: &'s SessionState,
}

impl Term<'_> {
    fn reads(&self, table: &TableWithJoins) -> bool {
        let joined = table.joins.iter().map(|join| &join.relation);
        std::iter::once(&table.relation).chain(joined).any(|factor| match factor {
            TableFactor::Table { name, .. } => match name.0.as_slice() {
                [name] => name.as_ident().is_some_and(|name| fold(name) == self.name),
                _ => false,
            },
            TableFactor::NestedJoin { table_with_joins, .. } => self.reads(table_with_joins),
            _ => false,
        })
    }
}

impl Visitor for Term<'_> {
    type Break = Error;

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        if select.from.iter().any(|table| self.reads(table)) {
            let mut aggregates = Aggregates { state: self.state, depth: 0 };
            walk(&select.projection, &mut aggregates)?;
            walk(&select.having, &mut aggregates)?;
        }
        ControlFlow::Continue(())
    }
}

struct Aggregates<'s> {
    state: &'s SessionState,
    depth: usize,
}

impl Visitor for Aggregates<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<Error> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
        if self.depth == 0
            && let Expr::Function(function) = expr
            && function.over.is_none()
            && let Some(name) = function.name.0.last().and_then(|part| part.as_ident())
            && self.state.aggregate_functions().contains_key(&fold(name))
        {
            let message = "aggregate functions are not allowed in a recursive query's recursive term";
            return ControlFlow::Break(Error::new(SqlState::INVALID_RECURSION, message));
        }
        ControlFlow::Continue(())
    }
}
