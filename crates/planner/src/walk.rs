//! Walks over syntax trees.
//!
//! `sqlparser` compiles a walk over the whole of its tree, some hundreds of functions, for every type of visitor that is handed to
//! `Visit::visit`. There are dozens of visitors here, and that was more than half of what this crate compiled. These walks are compiled
//! once: they hand what they meet to the visitor by a table of functions, which costs nothing beside the walk itself.

use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, ValueWithSpan, Visit, VisitMut, Visitor, VisitorMut,
};
use std::ops::ControlFlow;

/// Shows a tree to a visitor.
#[allow(clippy::disallowed_methods)]
pub fn walk<V: Visitor>(node: &(impl Visit + ?Sized), visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = Kept { visitor, broken: None };
    let _ = node.visit(&mut Erased(&mut kept));
    kept.broken.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// Shows a tree to a visitor that may change it.
#[allow(clippy::disallowed_methods)]
pub fn walk_mut<V: VisitorMut>(node: &mut (impl VisitMut + ?Sized), visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = KeptMut { visitor, broken: None };
    let _ = node.visit(&mut ErasedMut(&mut kept));
    kept.broken.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// Whether a tree names a column, of its own query or of one around.
pub fn names_column(node: &(impl Visit + ?Sized)) -> bool {
    struct Columns;
    impl Visitor for Columns {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    walk(node, &mut Columns).is_break()
}

/// A visitor behind a table of functions, which says whether to go on. Why not is kept beside the visitor.
macro_rules! erased {
    ($visitor:ident, $erased:ident, $kept:ident, $steps:ident, { $($step:ident($node:ty);)+ }) => {
        trait $steps {
            $(fn $step(&mut self, node: $node) -> ControlFlow<()>;)+
        }

        struct $kept<'v, V: $visitor> {
            visitor: &'v mut V,
            broken: Option<V::Break>,
        }

        impl<V: $visitor> $steps for $kept<'_, V> {
            $(fn $step(&mut self, node: $node) -> ControlFlow<()> {
                self.visitor.$step(node).map_break(|broken| self.broken = Some(broken))
            })+
        }

        struct $erased<'v>(&'v mut dyn $steps);

        impl $visitor for $erased<'_> {
            type Break = ();

            $(fn $step(&mut self, node: $node) -> ControlFlow<()> {
                self.0.$step(node)
            })+
        }
    };
}

erased! {
    Visitor, Erased, Kept, Steps,
    {
        pre_visit_query(&Query);
        post_visit_query(&Query);
        pre_visit_select(&Select);
        post_visit_select(&Select);
        pre_visit_relation(&ObjectName);
        post_visit_relation(&ObjectName);
        pre_visit_table_factor(&TableFactor);
        post_visit_table_factor(&TableFactor);
        pre_visit_expr(&Expr);
        post_visit_expr(&Expr);
        pre_visit_statement(&Statement);
        post_visit_statement(&Statement);
        pre_visit_value(&ValueWithSpan);
        post_visit_value(&ValueWithSpan);
    }
}

erased! {
    VisitorMut, ErasedMut, KeptMut, StepsMut,
    {
        pre_visit_query(&mut Query);
        post_visit_query(&mut Query);
        pre_visit_select(&mut Select);
        post_visit_select(&mut Select);
        pre_visit_relation(&mut ObjectName);
        post_visit_relation(&mut ObjectName);
        pre_visit_table_factor(&mut TableFactor);
        post_visit_table_factor(&mut TableFactor);
        pre_visit_expr(&mut Expr);
        post_visit_expr(&mut Expr);
        pre_visit_statement(&mut Statement);
        post_visit_statement(&mut Statement);
        pre_visit_value(&mut ValueWithSpan);
        post_visit_value(&mut ValueWithSpan);
    }
}
