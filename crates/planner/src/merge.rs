//! `MERGE`: what becomes of each row of the source and of the target, as a plan.
//!
//! The plan is a join of the two. Of each pair it gives the target row's id, the number of the first clause that
//! applies, the whole row that the clause makes of it, in the table's types, and then what `RETURNING` asks for. Pairs
//! that no clause applies to, or one that does nothing, are left out.

use crate::change::{self, assignments};
use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::insert::{self, object_name};
use crate::query::{self, ParameterFields};
use crate::resolve::BY_ID;
use crate::row_expressions::ROW;
use crate::statement::merge::{DEFAULT_VALUES, NOTHING, SYSTEM_VALUE, USER_VALUE, is_mark};
use crate::statement::{Overriding, fold, parse_expression, parse_query};
use crate::walk::walk_mut;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider as DataFusionTable;
use datafusion::common::{DFSchema, ScalarValue, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Case, Cast, EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::sql::sqlparser::ast::{self, VisitorMut};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::{ROW_ID, TableDef, TableVersion};

/// Outputs before the row's columns: the id, and the clause.
pub const FIRST: usize = 2;

/// What the number of the clause is called.
const ACTION: &str = "\u{1}action";

/// Whether there is a source row.
const SOURCE: &str = "\u{1}source";

/// What of a source row is never null.
const PRESENT: &str = "\u{1}present";

/// What a clause does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Nothing,
    Insert,
    Update,
    Delete,
}

/// The rows that a clause is for. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Matched,
    /// Of the source, without one of the target.
    BySource,
    /// Of the target, without one of the source.
    ByTarget,
}

struct Clause {
    kind: Kind,
    condition: Option<ast::Expr>,
    act: Act,
    /// Of the columns that are given.
    values: BTreeMap<usize, ast::Expr>,
}

/// A `MERGE`, read off its syntax.
pub struct Merge {
    pub version: Arc<TableVersion>,
    alias: ast::Ident,
    source: ast::TableFactor,
    on: ast::Expr,
    clauses: Vec<Clause>,
    returning: Option<Vec<ast::SelectItem>>,
    with: Option<ast::With>,
}

/// A `MERGE`, planned.
pub struct Planned {
    pub plan: LogicalPlan,
    /// By number of the clause.
    pub acts: Vec<Act>,
    /// Columns before those of `RETURNING`.
    pub width: usize,
    /// Names of the columns that `RETURNING` gives back.
    pub returning: Option<Vec<String>>,
}

impl Merge {
    pub fn read(facts: &Arc<SessionFacts>, merge: ast::Merge, with: Option<ast::With>) -> Result<Merge> {
        let refused = || Error::new(SqlState::SYNTAX_ERROR, "this form of MERGE is not PostgreSQL's");
        let ast::TableFactor::Table { name, alias, args: None, .. } = merge.table else {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "only a table can be changed"));
        };
        if merge.clauses.is_empty() || !merge.into {
            return Err(refused());
        }
        let named = object_name(&name)?;
        let version = crate::resolve::table(facts, &named)?;
        if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "columns of the table to be changed cannot be renamed"));
        }
        let alias = alias.map_or_else(|| ast::Ident::with_quote('"', &named.name), |alias| alias.name);
        let source = merge.source;
        if names_of(&source).iter().any(|name| fold(name) == fold(&alias)) {
            let message = format!("name \"{}\" specified more than once", fold(&alias));
            return Err(Error::new(SqlState::DUPLICATE_ALIAS, message)
                .with_detail("The name is used both as MERGE target table and data source."));
        }
        let returning = match merge.output {
            None => None,
            Some(ast::OutputClause::Returning { select_items, .. }) => Some(select_items),
            Some(_) => return Err(refused()),
        };
        let mut clauses: Vec<Clause> = Vec::with_capacity(merge.clauses.len());
        for clause in merge.clauses {
            let clause = Clause::read(&version.def, clause)?;
            if clauses.iter().any(|before| before.kind == clause.kind && before.condition.is_none()) {
                let message = "unreachable WHEN clause specified after unconditional WHEN clause";
                return Err(Error::new(SqlState::SYNTAX_ERROR, message));
            }
            clauses.push(clause);
        }
        Ok(Merge { version, alias, source, on: *merge.on, clauses, returning, with })
    }

    /// What the table is called in the statement.
    pub fn alias(&self) -> String {
        fold(&self.alias)
    }

    /// Type oids of the parameters: those given, else of a column for one that fills it as it stands.
    pub fn parameters(&self, given: &[u32]) -> Vec<u32> {
        let mut oids = given.to_vec();
        insert::settle_values(&self.version.def, self.clauses.iter().flat_map(|clause| &clause.values), &mut oids);
        oids
    }

    pub fn plan(
        mut self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        parameters: ParameterFields,
    ) -> Result<Planned> {
        let def = self.version.def.clone();
        let alias = fold(&self.alias);
        let has = |kind: Kind| self.clauses.iter().any(|clause| clause.kind == kind);
        let marked = has(Kind::ByTarget);
        let provider: Arc<dyn DataFusionTable> =
            crate::scan::TableProvider::with_row_ids(&facts.version, self.version.clone(), 0)?;
        let query = self.pairs(has(Kind::BySource), marked)?;
        let joined = query::logical_plan_of_rows(state, facts, query, parameters.clone(), provider)?;

        // The id, whether there is a source row, the row of the target, that of the source.
        let width = def.columns.len();
        let input = |index: usize| Expr::Column(joined.schema().qualified_field(index).into());
        let id = Expr::Cast(Cast::new(Box::new(input(0)), DataType::Int64));
        let mut outputs = vec![id.alias(ROW_ID), input(1).alias(SOURCE)];
        let row = (0..width).map(|column| {
            input(FIRST + column).alias_qualified(Some(TableReference::bare(alias.as_str())), &def.columns[column].name)
        });
        outputs.extend(row);
        let others = (FIRST + width)..joined.schema().fields().len();
        outputs.extend(others.filter(|index| joined.schema().field(*index).name() != PRESENT).map(input));
        let pairs = project(joined, outputs)?;

        let clauses = std::mem::take(&mut self.clauses);
        let mut planned = Vec::with_capacity(clauses.len());
        for clause in clauses {
            planned.push(clause.plan(state, facts, &pairs, &def, self.returning.is_some(), &parameters)?);
        }
        let acts: Vec<Act> = planned.iter().map(|clause| clause.act).collect();
        let action = action(&pairs, &planned);
        let column = |plan: &LogicalPlan, index: usize| Expr::Column(plan.schema().qualified_field(index).into());
        let columns = pairs.schema().fields().len();
        let outputs = (0..columns).map(|index| column(&pairs, index)).chain([action.alias(ACTION)]).collect();
        let chosen = project(pairs, outputs)?;
        let number = column(&chosen, columns);
        let chosen = LogicalPlanBuilder::from(chosen).filter(number.clone().is_not_null());
        let chosen = chosen.and_then(LogicalPlanBuilder::build).map_err(from_datafusion)?;

        let mut outputs = vec![column(&chosen, 0), number.clone()];
        for (position, definition) in def.columns.iter().enumerate() {
            let value = made(&number, &planned, position, &tidepool_table::arrow_type(definition.sql_type))?;
            outputs.push(value.alias_qualified(Some(TableReference::bare(alias.as_str())), &definition.name));
        }
        outputs.extend((FIRST + width..columns).map(|index| column(&chosen, index)));
        let plan = project(chosen, outputs)?;
        let width = FIRST + width;
        let Some(items) = self.returning.take() else {
            let outputs = (0..width).map(|index| column(&plan, index)).collect();
            return Ok(Planned { plan: project(plan, outputs)?, acts, width, returning: None });
        };
        let items = self.returned(items, &acts)?;
        let (plan, names) = query::returning(state, facts, items, plan, FIRST, width, parameters)?;
        Ok(Planned { plan, acts, width, returning: Some(names) })
    }

    /// The join: the target's id, whether there is a source row, the target's columns, the source's.
    fn pairs(&mut self, keeps_source: bool, keeps_target: bool) -> Result<Box<ast::Query>> {
        let join = match (keeps_source, keeps_target) {
            (false, false) => "JOIN",
            (true, false) => "LEFT JOIN",
            (false, true) => "RIGHT JOIN",
            (true, true) => "FULL JOIN",
        };
        let mut query = parse_query(&format!(
            "SELECT NULL FROM (SELECT *, TRUE FROM s) AS s {join} {BY_ID}.\"{ROW}\" AS t ON TRUE"
        ))?;
        let ast::SetExpr::Select(select) = query.body.as_mut() else {
            return Err(Error::internal("a SELECT that is none"));
        };
        let names = names_of(&self.source);
        let of = |table: &ast::Ident, name: &str| {
            ast::Expr::CompoundIdentifier(vec![table.clone(), ast::Ident::with_quote('"', name)])
        };
        let item = |expr: ast::Expr, name: String| ast::SelectItem::ExprWithAlias {
            expr,
            alias: ast::Ident::with_quote('"', name),
        };
        let source = match (keeps_target, names.as_slice()) {
            (true, [name]) => of(name, PRESENT),
            (true, _) => {
                return Err(Error::unsupported("WHEN NOT MATCHED BY SOURCE needs a source that is one table or query"));
            }
            (false, _) => ast::Expr::value(ast::Value::Boolean(true)),
        };
        select.projection = vec![item(of(&self.alias, ROW_ID), ROW_ID.to_owned()), item(source, SOURCE.to_owned())];
        for (position, column) in self.version.def.columns.iter().enumerate() {
            select.projection.push(item(of(&self.alias, &column.name), format!("\u{1}{position}")));
        }
        for name in &names {
            select.projection.push(all_of(name));
        }
        let Some(from) = select.from.first_mut() else { return Err(Error::internal("a join that is none")) };
        if keeps_target {
            mark(&mut from.relation, &self.source, &names)?;
        } else {
            from.relation = self.source.clone();
        }
        if let Some(join) = from.joins.first_mut() {
            if let ast::TableFactor::Table { alias: Some(alias), .. } = &mut join.relation {
                alias.name = self.alias.clone();
            }
            use ast::JoinOperator::{FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
            if let Join(on) | Inner(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on) | FullOuter(on) =
                &mut join.join_operator
            {
                *on = ast::JoinConstraint::On(self.on.clone());
            }
        }
        query.with = self.with.take();
        Ok(Box::new(query))
    }

    /// The items of `RETURNING`: a wildcard stands for the source's columns and then the target's, `merge_action()` for
    /// what was done.
    fn returned(&self, items: Vec<ast::SelectItem>, acts: &[Act]) -> Result<Vec<ast::SelectItem>> {
        let word = |act: &Act| match act {
            Act::Insert => "INSERT",
            Act::Update => "UPDATE",
            Act::Delete | Act::Nothing => "DELETE",
        };
        let cases: Vec<String> =
            acts.iter().enumerate().map(|(number, act)| format!("WHEN {number} THEN '{}'", word(act))).collect();
        let action = parse_expression(&format!("CASE \"{ACTION}\" {} END", cases.join(" ")))?;
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            match item {
                ast::SelectItem::Wildcard(_) => {
                    out.extend(names_of(&self.source).iter().chain([&self.alias]).map(all_of));
                }
                ast::SelectItem::UnnamedExpr(expr) if is_merge_action(&expr) => {
                    let alias = ast::Ident::with_quote('"', "merge_action");
                    out.push(ast::SelectItem::ExprWithAlias { expr: action.clone(), alias });
                }
                mut item => {
                    let _ = walk_mut(&mut item, &mut Actions(&action));
                    out.push(item);
                }
            }
        }
        Ok(out)
    }
}

struct Actions<'a>(&'a ast::Expr);

impl VisitorMut for Actions<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        if is_merge_action(expr) {
            *expr = ast::Expr::Nested(Box::new(self.0.clone()));
        }
        ControlFlow::Continue(())
    }
}

fn is_merge_action(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("merge_action"))
}

fn names_of(source: &ast::TableFactor) -> Vec<ast::Ident> {
    change::names_of(&ast::TableWithJoins { relation: source.clone(), joins: Vec::new() })
}

fn all_of(name: &ast::Ident) -> ast::SelectItem {
    let kind = ast::SelectItemQualifiedWildcardKind::ObjectName(ast::ObjectName::from(vec![name.clone()]));
    ast::SelectItem::QualifiedWildcard(kind, ast::WildcardAdditionalOptions::default())
}

/// Puts the source into `place`, `(SELECT *, TRUE FROM s) AS s`, and calls the last column `PRESENT`.
fn mark(place: &mut ast::TableFactor, source: &ast::TableFactor, names: &[ast::Ident]) -> Result<()> {
    if let ast::TableFactor::Derived { subquery, alias: Some(alias), .. } = place
        && let ast::SetExpr::Select(select) = subquery.body.as_mut()
        && let (Some(from), Some(item), [name]) = (select.from.first_mut(), select.projection.last_mut(), names)
    {
        from.relation = source.clone();
        alias.name = name.clone();
        let expr = ast::Expr::value(ast::Value::Boolean(true));
        *item = ast::SelectItem::ExprWithAlias { expr, alias: ast::Ident::with_quote('"', PRESENT) };
        return Ok(());
    }
    Err(Error::internal("a source that is none"))
}

impl Clause {
    fn read(def: &TableDef, clause: ast::MergeClause) -> Result<Clause> {
        let kind = match clause.clause_kind {
            ast::MergeClauseKind::Matched => Kind::Matched,
            ast::MergeClauseKind::NotMatched | ast::MergeClauseKind::NotMatchedByTarget => Kind::BySource,
            ast::MergeClauseKind::NotMatchedBySource => Kind::ByTarget,
        };
        let only = |name: &ast::ObjectName, mark: &str| matches!(name.0.as_slice(), [part] if part.as_ident().is_some_and(|name| name.value == mark));
        let (act, values) = match clause.action {
            ast::MergeAction::Delete { .. } => (Act::Delete, BTreeMap::new()),
            ast::MergeAction::Update(update) => {
                if update.update_predicate.is_some() || update.delete_predicate.is_some() {
                    return Err(Error::new(SqlState::SYNTAX_ERROR, "this form of MERGE is not PostgreSQL's"));
                }
                let is_nothing = matches!(update.assignments.as_slice(),
                    [ast::Assignment { target: ast::AssignmentTarget::ColumnName(name), .. }] if only(name, NOTHING));
                match is_nothing {
                    true => (Act::Nothing, BTreeMap::new()),
                    false => (Act::Update, assignments(def, update.assignments)?),
                }
            }
            ast::MergeAction::Insert(insert) => match insert.columns.as_slice() {
                [name] if only(name, NOTHING) => (Act::Nothing, BTreeMap::new()),
                [name] if only(name, DEFAULT_VALUES) => (Act::Insert, BTreeMap::new()),
                _ => (Act::Insert, inserted(def, insert)?),
            },
        };
        Ok(Clause { kind, condition: clause.predicate, act, values })
    }

    /// `pairs`: what its expressions are over, as far as it may look there. `whole`: all of a row that it deletes is
    /// wanted.
    fn plan(
        self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        pairs: &LogicalPlan,
        def: &TableDef,
        whole: bool,
        parameters: &ParameterFields,
    ) -> Result<PlannedClause> {
        let width = def.columns.len();
        let seen = match self.kind {
            Kind::Matched => part_of(pairs, FIRST..pairs.schema().fields().len())?,
            Kind::BySource => part_of(pairs, FIRST + width..pairs.schema().fields().len())?,
            Kind::ByTarget => part_of(pairs, FIRST..FIRST + width)?,
        };
        let positions: Vec<usize> = self.values.keys().copied().collect();
        let items = self.values.into_values().chain(self.condition).map(ast::SelectItem::UnnamedExpr).collect();
        let mut exprs: Vec<Expr> = query::returned(state, facts, items, &seen, 0, parameters.clone())?
            .into_iter()
            .map(|(_, expr)| expr)
            .collect();
        let condition = (exprs.len() > positions.len()).then(|| exprs.pop()).flatten();
        let named = |(place, expr): (usize, &Expr)| expr.clone().alias(format!("\u{1}{place}"));
        let read = project(seen, exprs.iter().enumerate().map(named).collect())?;
        let assigned = insert::assigned(&read, 0, &positions, def)?;
        let mut values = BTreeMap::new();
        for ((position, expr), assigned) in positions.into_iter().zip(exprs).zip(assigned) {
            values.insert(position, in_place(assigned, expr));
        }
        for (position, column) in def.columns.iter().enumerate() {
            let is_kept = self.act == Act::Update || self.act == Act::Delete && whole;
            if is_kept {
                let old = Expr::Column(pairs.schema().qualified_field(FIRST + position).into());
                values.entry(position).or_insert(old);
            } else if self.act == Act::Insert && !values.contains_key(&position) {
                let value = insert::default(state, facts, column.default.as_deref(), column.sql_type)?;
                values.insert(position, value);
            }
        }
        Ok(PlannedClause { kind: self.kind, condition, act: self.act, values })
    }
}

/// The values of an `INSERT`'s columns.
fn inserted(def: &TableDef, insert: ast::MergeInsertExpr) -> Result<BTreeMap<usize, ast::Expr>> {
    let refused = || Error::new(SqlState::SYNTAX_ERROR, "this form of MERGE is not PostgreSQL's");
    let overriding = match &insert.insert_predicate {
        None => Overriding::Nothing,
        Some(mark) if is_mark(mark, SYSTEM_VALUE) => Overriding::SystemValue,
        Some(mark) if is_mark(mark, USER_VALUE) => Overriding::UserValue,
        Some(_) => return Err(refused()),
    };
    let names =
        insert.columns.iter().map(|name| object_name(name).map(|name| name.name)).collect::<Result<Vec<_>>>()?;
    let mut columns = insert::positions(def, &names)?;
    let ast::MergeInsertKind::Values(ast::Values { rows, .. }) = insert.kind else { return Err(refused()) };
    let [row] = <[_; 1]>::try_from(rows).map_err(|_| refused())?;
    let row = row.content;
    insert::fit(&mut columns, row.len(), !names.is_empty())?;
    let mut values = BTreeMap::new();
    for (value, position) in row.into_iter().zip(columns) {
        // What is left out has its default.
        if let Some(value) = insert::given(def, position, value, overriding)? {
            values.insert(position, value);
        }
    }
    Ok(values)
}

/// A clause, over the pairs.
struct PlannedClause {
    kind: Kind,
    condition: Option<Expr>,
    act: Act,
    /// By the table's columns, in its types. Of an action that makes no row, none.
    values: BTreeMap<usize, Expr>,
}

/// The number of the first clause that applies to a pair, null where none does, or one that does nothing.
fn action(pairs: &LogicalPlan, clauses: &[PlannedClause]) -> Expr {
    let column = |index: usize| Expr::Column(pairs.schema().qualified_field(index).into());
    // Conditions are looked at for the rows alone that they are for.
    let kinds = [Kind::BySource, Kind::ByTarget, Kind::Matched].into_iter().filter_map(|kind| {
        let of_kind = clauses.iter().enumerate().filter(|(_, clause)| clause.kind == kind);
        let when: Vec<(Box<Expr>, Box<Expr>)> = of_kind
            .map(|(number, clause)| {
                let number = match clause.act {
                    Act::Nothing => Expr::Literal(ScalarValue::Int64(None), None),
                    _ => lit(number as i64),
                };
                (Box::new(clause.condition.clone().unwrap_or_else(|| lit(true))), Box::new(number))
            })
            .collect();
        let is_kind = match kind {
            Kind::BySource => column(0).is_null(),
            Kind::ByTarget => column(1).is_null(),
            Kind::Matched => column(0).is_not_null().and(column(1).is_not_null()),
        };
        let chosen = Expr::Case(Case::new(None, when.clone(), None));
        (!when.is_empty()).then(|| (Box::new(is_kind), Box::new(chosen)))
    });
    Expr::Case(Case::new(None, kinds.collect(), None))
}

/// What the clause of that number makes of a column.
fn made(number: &Expr, clauses: &[PlannedClause], position: usize, data_type: &DataType) -> Result<Expr> {
    let values: Vec<(usize, &Expr)> = clauses
        .iter()
        .enumerate()
        .filter_map(|(place, clause)| clause.values.get(&position).map(|value| (place, value)))
        .collect();
    let null = || ScalarValue::try_from(data_type).map(|null| Expr::Literal(null, None)).map_err(from_datafusion);
    match values.as_slice() {
        [] => null(),
        // Whatever is done makes the same of it.
        [(_, first), rest @ ..] if matches!(first, Expr::Column(_)) && rest.iter().all(|(_, value)| value == first) => {
            Ok((*first).clone())
        }
        _ => {
            let when = values.into_iter().map(|(place, value)| (Box::new(lit(place as i64)), Box::new(value.clone())));
            Ok(Expr::Case(Case::new(Some(Box::new(number.clone())), when.collect(), None)))
        }
    }
}

/// Some of a plan's outputs, for planning expressions over them.
fn part_of(plan: &LogicalPlan, part: std::ops::Range<usize>) -> Result<LogicalPlan> {
    let fields = part.map(|index| {
        let (qualifier, field) = plan.schema().qualified_field(index);
        (qualifier.cloned(), field.clone())
    });
    let schema = DFSchema::new_with_metadata(fields.collect(), Default::default()).map_err(from_datafusion)?;
    Ok(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema: Arc::new(schema) }))
}

fn project(input: LogicalPlan, outputs: Vec<Expr>) -> Result<LogicalPlan> {
    LogicalPlanBuilder::from(input).project(outputs).and_then(LogicalPlanBuilder::build).map_err(from_datafusion)
}

/// The value where its column is, within the cast and the rounding of an assignment.
fn in_place(assigned: Expr, value: Expr) -> Expr {
    match assigned {
        Expr::Cast(cast) => Expr::Cast(Cast { expr: Box::new(in_place(*cast.expr, value)), ..cast }),
        Expr::ScalarFunction(mut function) => {
            if let Some(argument) = function.args.first_mut() {
                *argument = in_place(std::mem::take(argument), value);
            }
            Expr::ScalarFunction(function)
        }
        _ => value,
    }
}
