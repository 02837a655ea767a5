//! `INSERT`, `UPDATE`, `DELETE` and `MERGE`: rows of a plan written, and given back where `RETURNING` asks for them.

use super::explain::{Explained, Ran};
use super::parts::Begun;
use super::tables::checked_writer;
use super::{Outcome, ResultColumn, Session};
use crate::catalog::quote_identifier;
use crate::change::{self, Change};
use crate::execute::{Batches, Reevaluation, joined};
use crate::explain::Node;
use crate::facts::SessionFacts;
use crate::generic::{self, Written as WrittenAs};
use crate::insert::Conform;
use crate::merge::{self, Act, Merge};
use crate::names::OutputNames;
use crate::origins::{self, Origins};
use crate::query;
use crate::statement::{Command, Statement};
use crate::upsert::{self, Upsert};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, Schema, SchemaRef};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result, RowId, TableId};
use tidepool_database::text::TextSettings;
use tidepool_database::{Changed, ChangedRows, PartitionTree, RelationName, Transaction, Upserted};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::RowLock;
use tidepool_table::{TableDef, TableVersion};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Insert,
    Update,
    Delete,
    Merge,
}

impl Verb {
    pub fn of(command: &Command) -> Option<Verb> {
        match command {
            Command::Insert(..) => Some(Verb::Insert),
            Command::Update { .. } => Some(Verb::Update),
            Command::Delete { .. } => Some(Verb::Delete),
            Command::MergeInto { .. } => Some(Verb::Merge),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Insert => "INSERT",
            Verb::Update => "UPDATE",
            Verb::Delete => "DELETE",
            Verb::Merge => "MERGE",
        }
    }

    /// What it takes of a row that it is to look at again.
    fn lock(self) -> RowLock {
        match self {
            Verb::Insert | Verb::Update => RowLock::NoKeyUpdate,
            Verb::Delete | Verb::Merge => RowLock::Update,
        }
    }

    /// The command tag before its number of rows.
    fn tag(self) -> &'static str {
        match self {
            Verb::Insert => "INSERT 0",
            Verb::Update => "UPDATE",
            Verb::Delete => "DELETE",
            Verb::Merge => "MERGE",
        }
    }
}

#[derive(Debug)]
struct Returned {
    names: Vec<String>,
    origins: Origins,
}

impl Returned {
    /// `first`: where the columns of the table begin in what the list is made of.
    fn of(
        facts: &SessionFacts,
        plan: &LogicalPlan,
        names: Vec<String>,
        first: usize,
        width: usize,
        def: &TableDef,
    ) -> Returned {
        let LogicalPlan::Projection(list) = plan else { return Returned { names, origins: Origins::new() } };
        let mut input = origins::of_plan(facts, &list.input);
        let target = input.iter_mut().skip(first).zip(origins::of_table(def));
        target.for_each(|(column, origin)| *column = origin);
        let origins = origins::of_exprs(&list.expr[width..], &input, list.input.schema());
        Returned { names, origins }
    }
}

/// What becomes of a plan's rows, whatever they are: the same for statements that differ in values only.
#[derive(Debug)]
pub(crate) struct Shape {
    verb: Verb,
    table: TableId,
    /// What the table is called in the statement.
    alias: String,
    /// Columns before those of `RETURNING`.
    width: usize,
    /// The columns that `RETURNING` gives back.
    returning: Option<Returned>,
    /// Of an `INSERT`.
    conflict: Option<upsert::Plan>,
    /// Of a `MERGE`: what its clauses do.
    acts: Arc<[Act]>,
}

/// A statement that writes, as a plan of the rows.
pub(crate) struct Source {
    pub version: Arc<TableVersion>,
    pub plan: LogicalPlan,
    pub shape: Arc<Shape>,
}

impl Source {
    /// As it is written, with parameters of these types.
    pub fn planned(
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        command: &Command,
        parameters: query::ParameterFields,
    ) -> Result<Source> {
        Source::read(facts, command, &[])?.0.plan(state, facts, parameters)
    }

    /// Of a statement that others were planned for.
    fn of(shape: Arc<Shape>, facts: &SessionFacts, plan: LogicalPlan) -> Result<Source> {
        let version = facts.version.table_by_id(shape.table);
        let version = version.ok_or_else(|| Error::internal("a kept plan's table is gone"))?;
        Ok(Source { version, plan, shape })
    }

    /// Type oids of the parameters, as far as the syntax tells: those given, and of columns that a parameter fills as
    /// it stands.
    pub(super) fn read(facts: &Arc<SessionFacts>, command: &Command, given: &[u32]) -> Result<(Reading, Vec<u32>)> {
        match command {
            Command::Insert(insert, overriding) => {
                let target = crate::insert::read(facts, insert.as_ref().clone(), *overriding)?;
                let columns = &target.version.def.columns;
                let types: Vec<u32> = target.columns.iter().map(|&column| columns[column].sql_type.oid()).collect();
                let mut oids = crate::insert::value_parameters(insert, &types, given);
                target.settle_parameters(&mut oids);
                Ok((Reading::Insert(Box::new(target)), oids))
            }
            Command::Update { update, with } => {
                let with = with.as_deref().cloned();
                let change = Change::of_update(facts, update.as_ref().clone(), with)?;
                let oids = change.parameters(given);
                Ok((Reading::Change(Box::new(change)), oids))
            }
            Command::Delete { delete, with } => {
                let with = with.as_deref().cloned();
                let change = Change::of_delete(facts, delete.as_ref().clone(), with)?;
                Ok((Reading::Change(Box::new(change)), given.to_vec()))
            }
            Command::MergeInto { merge, with } => {
                let merge = Merge::read(facts, merge.as_ref().clone(), with.as_deref().cloned())?;
                let oids = merge.parameters(given);
                Ok((Reading::Merge(Box::new(merge)), oids))
            }
            _ => Err(Error::internal("not a statement that writes")),
        }
    }

    /// It says what becomes of rows whose keys others have.
    /// Type oids of its parameters, those given first.
    pub fn parameter_oids(&self, given: &[u32]) -> Result<Vec<u32>> {
        let further = self.shape.conflict.iter().flat_map(upsert::Plan::plans);
        query::parameter_oids_of(std::iter::once(&self.plan).chain(further), given)
    }

    pub fn has_conflict(&self) -> bool {
        self.shape.conflict.is_some()
    }

    /// Columns of the plan before those of `RETURNING`.
    pub fn width(&self) -> usize {
        self.shape.width
    }

    pub fn returns(&self) -> bool {
        self.shape.returning.is_some()
    }

    /// What `EXPLAIN` shows over the plan.
    pub fn node(&self, facts: &SessionFacts, upsert: Option<&Upsert>) -> Node {
        let def = &self.version.def;
        let verb = match self.shape.verb {
            Verb::Insert => "Insert",
            Verb::Update => "Update",
            Verb::Delete => "Delete",
            Verb::Merge => "Merge",
        };
        let path = crate::resolve::search_path(facts);
        let schema = facts.version.schema_name(def.schema);
        let is_found = path.iter().any(|name| name == schema);
        let mut what = format!("{verb} on ");
        if !is_found {
            what += &format!("{}.", quote_identifier(schema));
        }
        what += &quote_identifier(&def.name);
        if self.shape.alias != def.name {
            what += &format!(" {}", quote_identifier(&self.shape.alias));
        }
        let mut node = Node::new(what);
        if let Some(upsert) = upsert {
            node.detail(format!("Conflict Resolution: {}", if upsert.update.is_some() { "UPDATE" } else { "NOTHING" }));
            let named = |id: &TableId| def.indexes.iter().find(|index| index.id == *id);
            let names: Vec<String> =
                upsert.arbiters.iter().filter_map(named).map(|index| quote_identifier(&index.name)).collect();
            if !names.is_empty() {
                node.detail(format!("Conflict Arbiter Indexes: {}", names.join(", ")));
            }
            if let Some(condition) = upsert.update.as_ref().and_then(|update| update.condition.as_ref()) {
                node.detail(format!("Conflict Filter: ({condition})"));
            }
        }
        node
    }

    /// The columns that `RETURNING` gives back. `schema` is the plan's, coerced.
    pub fn columns(&self, schema: &Schema) -> Option<Vec<ResultColumn>> {
        let Returned { names, origins } = self.shape.returning.as_ref()?;
        let mut columns = query::columns(schema, &OutputNames::none()).split_off(self.shape.width);
        for (column, name) in columns.iter_mut().zip(names) {
            column.name.clone_from(name);
        }
        origins::mark(&mut columns, origins);
        Some(columns)
    }
}

/// A statement that writes, read off its syntax.
pub(super) enum Reading {
    Insert(Box<crate::insert::Target>),
    Change(Box<Change>),
    Merge(Box<Merge>),
}

impl Reading {
    pub fn plan(
        self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        parameters: query::ParameterFields,
    ) -> Result<Source> {
        let (version, alias) = match &self {
            Reading::Insert(target) => (target.version.clone(), target.alias.clone()),
            Reading::Change(change) => (change.version.clone(), change.alias()),
            Reading::Merge(merge) => (merge.version.clone(), merge.alias()),
        };
        let (mut conflict, mut acts) = (None, Vec::new());
        let (verb, plan, first, width, names) = match self {
            Reading::Insert(target) => {
                let planned = target.plan(state, facts, parameters)?;
                conflict = planned.conflict;
                (Verb::Insert, planned.plan, 0, version.def.columns.len(), planned.returning)
            }
            Reading::Change(change) => {
                let verb = if change.is_update() { Verb::Update } else { Verb::Delete };
                let planned = change.plan(state, facts, parameters)?;
                (verb, planned.plan, change::FIRST, planned.width, planned.returning)
            }
            Reading::Merge(merge) => {
                let planned = merge.plan(state, facts, parameters)?;
                acts = planned.acts;
                (Verb::Merge, planned.plan, merge::FIRST, planned.width, planned.returning)
            }
        };
        let returning = names.map(|names| Returned::of(facts, &plan, names, first, width, &version.def));
        let table = version.def.id;
        let shape = Shape { verb, table, alias, width, returning, conflict, acts: acts.into() };
        Ok(Source { version, plan, shape: Arc::new(shape) })
    }
}

/// What a statement wrote.
#[derive(Default)]
pub(super) struct Written {
    pub(super) rows: u64,
    /// Of these, of an `INSERT` or a `MERGE`, those that were there already, and those that are there no more.
    pub(super) updated: u64,
    pub(super) deleted: u64,
    /// Of an `INSERT`: those not counted because they are there already.
    pub(super) skipped: u64,
    /// Nothing was written: somebody else changed a row meanwhile, so the statement is to be run again, as of now.
    pub(super) again: bool,
    /// What `RETURNING` gives back. Their buffers may lie in the statement's heap.
    pub(super) returned: Vec<RecordBatch>,
}

impl Session {
    pub(super) async fn change(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        mut explained: Option<&mut Option<Explained>>,
    ) -> Result<Outcome> {
        let verb = Verb::of(statement.command()).ok_or_else(|| Error::internal("not a statement that writes"))?;
        if self.is_read_only() {
            // What is wrong with it is said first; of one that was prepared it was.
            if parameters.is_empty() {
                Box::pin(self.describe_inner(statement, &[])).await?;
            }
            if statement.locks_rows() || !self.writes_temporary(statement.command()) {
                self.check_writable(verb.name())?;
            }
        }
        // What it reads and what it writes over is of one transaction.
        let own_block = self.begin_own_block();
        let changed = loop {
            match self.try_change(verb, text, statement, parameters, explained.as_deref_mut()).await {
                Ok(None) => {}
                Ok(Some(outcome)) => break Ok(outcome),
                Err(error) => break Err(error),
            }
        };
        self.end_own_block(own_block, changed).await
    }

    /// With `shares`, the plan may be that of others.
    pub(super) async fn plan_change(
        &self,
        facts: &Arc<SessionFacts>,
        statement: &Statement,
        parameters: &[ArrayRef],
        shares: bool,
    ) -> Result<(Source, Option<Upsert>, query::Planned)> {
        let facts = facts.clone();
        let mut parameters = parameters.to_vec();
        let current = self.current_of(statement.command())?;
        let shares = shares && current.is_none() && may_share(statement.command()) && query::keeps_plans(&facts);
        let mut request = if shares { self.request_of(statement, &parameters) } else { None };
        let is_known = request.as_mut().is_some_and(|request| self.finds(request, &facts));
        let text = statement.text().to_owned();
        let statement = statement.clone();
        let planning = async move {
            let state = facts.planner.state(&facts);
            let served = match &mut request {
                Some(request) => generic::planned(&state, &facts, request, WrittenAs::Change(statement.command()))?,
                None => None,
            };
            let source = match served {
                Some(generic::Planned { plan, change: Some((shape, values)), .. }) => {
                    if shape.conflict.is_some() {
                        let arrays = values.iter().map(|value| value.to_array()).collect::<std::result::Result<_, _>>();
                        parameters = arrays.map_err(crate::errors::from_datafusion)?;
                    }
                    Source::of(shape, &facts, plan)?
                }
                _ => {
                    let (mut reading, _) = Source::read(&facts, statement.command(), &[])?;
                    match (&mut reading, &current) {
                        (Reading::Change(change), Some(current)) => change.pick(current.row_of(&change.version.def)?),
                        (Reading::Insert(target), _) => target.give(&parameters),
                        _ => {}
                    }
                    let source = reading.plan(&state, &facts, query::parameter_fields(&parameters))?;
                    let plan = query::bind(source.plan, &parameters)?;
                    let plan = query::optimized(&state, &plan)?;
                    if let Some(request) = &request {
                        generic::note_own(&facts, request, &plan);
                    }
                    Source { plan, ..source }
                }
            };
            let settings = facts.settings.text_settings();
            let ready = |conflict: &upsert::Plan| conflict.ready(&state, &source.version.def, &parameters, settings);
            let upsert = source.shape.conflict.as_ref().map(ready).transpose()?;
            let (plan, again) = query::physical_plan_of_change(&state, &source.plan).await?;
            let planned = query::planned(state, plan, &OutputNames::none());
            Ok((source, upsert, query::Planned { again, ..planned }))
        };
        match is_known {
            true => self.plan_here(&text, planning).await,
            false => self.plan_apart(&text, planning).await,
        }
    }

    /// `None`: to be tried again, as of now.
    async fn try_change(
        &mut self,
        verb: Verb,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        explained: Option<&mut Option<Explained>>,
    ) -> Result<Option<Outcome>> {
        let Begun { running, statement, plans: parts, .. } =
            self.begin_statement(text, statement, parameters, true).await?;
        let start = Instant::now();
        let (source, upsert, planned) =
            self.plan_change(&running.facts, &statement, parameters, explained.is_none()).await?;
        let planning = start.elapsed();
        let mut node = explained.is_some().then(|| source.node(&running.facts, upsert.as_ref()));
        let schema = planned.schema.clone();
        let columns = source.columns(&schema);
        let settings = running.facts.settings.text_settings();
        let interrupt = running.interrupt.clone();
        let facts = running.facts.clone();
        let info = running.query.info.clone();
        let start = Instant::now();
        let (prepared, reevaluation) = self.prepare_writing(running, planned)?;
        let (plan, heap) = (prepared.plan.clone(), prepared.heap.clone());
        let workers = self.planner.workers();
        let (def, width, acts) = (source.version.def.clone(), source.shape.width, source.shape.acts.clone());
        let tree = facts.version.partition_tree(&def)?;
        let table = RelationName::from(&*def);
        let returns = columns.is_some();
        let is_upsert = upsert.is_some();
        let written = self.begin_write(facts.clone(), interrupt, move |transaction, interrupt| {
            transaction.lock_rows_of(&table, &interrupt.lock_wait())?;
            // Not before: it may have to be planned anew once the lock is there.
            let mut batches = prepared.start_here(&workers);
            let before = transaction.savepoint();
            let rows = Rows {
                facts: &facts,
                batches: &mut batches,
                reevaluation: &reevaluation,
                schema: &schema,
                settings,
                width,
                returns,
                tree: tree.clone(),
            };
            let written = match verb {
                Verb::Insert if let Some(upsert) = &upsert => rows.upsert(transaction, &table, upsert),
                Verb::Insert => rows.insert(transaction, &table),
                Verb::Update => rows.update(transaction, &table),
                Verb::Delete => rows.delete(transaction, &table),
                Verb::Merge => rows.merge(transaction, &table, &acts),
            }?;
            if written.again {
                let newer = newer_of(transaction, &def, tree.as_deref())?;
                transaction.roll_back_to(&before);
                // Nobody changes them once more, then.
                for (table, rows) in &newer {
                    transaction.lock_newest(table, rows, verb.lock())?;
                }
            }
            Ok(written)
        });
        let Written { rows, updated, deleted, skipped, again, returned } = joined(written.await)?;
        if again {
            return Ok(None);
        }
        if let Some(explained) = explained {
            if let (Some(node), true) = (&mut node, is_upsert) {
                node.detail(format!("Tuples Inserted: {}", rows - updated));
                node.detail(format!("Conflicting Tuples: {}", skipped + updated));
            }
            if let (Some(node), Verb::Merge) = (&mut node, verb) {
                let inserted = rows - updated - deleted;
                node.detail(format!("Tuples: inserted={inserted} updated={updated} deleted={deleted}"));
            }
            let ran = Some(Ran { elapsed: start.elapsed(), rows, info });
            *explained = Some(Explained { node, plan, parts, planning, ran });
        }
        let Some(columns) = columns else { return Ok(Some(Outcome::command(format!("{} {rows}", verb.tag())))) };
        Ok(Some(Outcome::Rows { columns, batches: Box::pin(returned_stream(returned, heap)), tag: verb.tag() }))
    }
}

/// Whether what it writes comes from a plan that is worth keeping: rows that are written out are read into theirs.
fn may_share(command: &Command) -> bool {
    match command {
        Command::Insert(insert, _) => {
            let body = insert.source.as_ref().map(|source| source.body.as_ref());
            body.is_some_and(|body| !matches!(body, ast::SetExpr::Values(_)))
        }
        _ => true,
    }
}

/// The batches, which keep the heap that they lie in.
pub(super) fn returned_stream(
    batches: Vec<RecordBatch>,
    heap: Arc<QueryHeap>,
) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
    futures::stream::iter(batches.into_iter().map(Ok)).map(move |batch| {
        let _heap = &heap;
        batch
    })
}

/// Rows of a plan on their way into a table.
pub(super) struct Rows<'a> {
    pub(super) facts: &'a Arc<SessionFacts>,
    pub(super) batches: &'a mut Batches,
    pub(super) reevaluation: &'a Reevaluation,
    schema: &'a SchemaRef,
    settings: TextSettings,
    /// Columns before those of `RETURNING`.
    pub(super) width: usize,
    pub(super) returns: bool,
    /// Of a partitioned table: what rows' ids name them within.
    pub(super) tree: Option<Arc<PartitionTree>>,
}

impl Rows<'_> {
    /// The columns from `first` to `width` as a table takes them.
    pub(super) fn conform(&self, transaction: &Transaction, table: &RelationName, first: usize) -> Result<Conform> {
        let version = transaction.version();
        let def = version.table(table).ok_or_else(|| Error::internal("the table is gone"))?.def.clone();
        let schema = Schema::new(self.schema.fields()[first..self.width].to_vec());
        Ok(Conform::new(&def, &schema, self.settings.clone()))
    }

    fn insert(self, transaction: &mut Transaction, table: &RelationName) -> Result<Written> {
        let conform = self.conform(transaction, table, 0)?;
        let mut writer = checked_writer(transaction, self.facts, table)?;
        let mut written = Written::default();
        while let Some(batch) = self.batches.blocking_next() {
            let batch = batch?;
            writer.write(&conform.apply(&part(&batch, 0..self.width)?)?)?;
            if self.returns {
                written.returned.push(part(&batch, self.width..batch.num_columns())?);
            }
        }
        written.rows = transaction.absorb(writer)?;
        Ok(written)
    }

    fn upsert(self, transaction: &mut Transaction, table: &RelationName, upsert: &Upsert) -> Result<Written> {
        let conform = self.conform(transaction, table, 0)?;
        let mut writer = checked_writer(transaction, self.facts, table)?;
        let mut written = Written::default();
        while let Some(batch) = self.batches.blocking_next() {
            let batch = batch?;
            let rows = conform.apply(&part(&batch, 0..self.width)?)?;
            let mut update = upsert.update.as_ref().map(|update| {
                let rows = &rows;
                move |place: usize, existing: &RecordBatch| update.apply(existing, &rows.slice(place, 1))
            });
            let action = update.as_mut().map(|update| update as tidepool_database::OnConflict<'_>);
            let done = transaction.upsert_of(table, &mut writer, &rows, &upsert.arbiters, action)?;
            for done in &done {
                match done {
                    Upserted::Inserted => written.rows += 1,
                    Upserted::Updated(_) => (written.rows, written.updated) = (written.rows + 1, written.updated + 1),
                    Upserted::Skipped => written.skipped += 1,
                }
            }
            if !self.returns {
                continue;
            }
            let returned = part(&batch, self.width..batch.num_columns())?;
            let schema = returned.schema();
            let mut inserted = 0..0;
            for (place, done) in done.iter().enumerate() {
                if let Upserted::Inserted = done {
                    inserted = if inserted.is_empty() { place..place + 1 } else { inserted.start..place + 1 };
                    continue;
                }
                if !inserted.is_empty() {
                    written.returned.push(returned.slice(inserted.start, inserted.len()));
                    inserted = 0..0;
                }
                if let (Upserted::Updated(row), Some(update)) = (done, &upsert.update) {
                    written.returned.extend(update.returned(row, &schema)?);
                }
            }
            if !inserted.is_empty() {
                written.returned.push(returned.slice(inserted.start, inserted.len()));
            }
        }
        Ok(written)
    }

    fn update(self, transaction: &mut Transaction, table: &RelationName) -> Result<Written> {
        let conform = self.conform(transaction, table, 1)?;
        let values = 1..self.width;
        let mut writer = checked_writer(transaction, self.facts, table)?;
        let tree = self.tree.clone();
        self.change(transaction, table, |transaction, batch, ids, now| {
            let rows = conform.apply(&part(batch, values.clone())?)?;
            match now {
                None => {
                    let change = ChangedRows::Become { rows: &rows, writer: &mut writer };
                    transaction.change_rows_of(table, tree.as_deref(), ids, change)
                }
                Some(now) => transaction.change_newer(now, ids, Some(&writer.checked(&rows)?)),
            }
        })
    }

    fn delete(self, transaction: &mut Transaction, table: &RelationName) -> Result<Written> {
        let tree = self.tree.clone();
        self.change(transaction, table, |transaction, _, ids, now| match now {
            None => transaction.change_rows_of(table, tree.as_deref(), ids, ChangedRows::Go),
            Some(now) => transaction.change_newer(now, ids, None),
        })
    }

    /// `change` says of each row whether it was written, of rows as the statement sees them or as they are now.
    fn change(
        self,
        transaction: &mut Transaction,
        table: &RelationName,
        mut change: impl FnMut(&mut Transaction, &RecordBatch, &[RowId], Option<&TableVersion>) -> Result<Changed>,
    ) -> Result<Written> {
        let version = transaction.version();
        let def = version.table(table).ok_or_else(|| Error::internal("the table is gone"))?.def.clone();
        let mut written = Written::default();
        let mut write = |transaction: &mut Transaction, batch: &RecordBatch, now: Option<&TableVersion>| {
            let ids = ids_of(batch)?;
            let done = match change(transaction, batch, &ids, now)? {
                Changed::Rows(done) => done,
                Changed::Again => return Ok(false),
            };
            written.rows += done.true_count() as u64;
            if self.returns {
                let returned = part(batch, self.width..batch.num_columns())?;
                let returned = if done.true_count() == done.len() {
                    returned
                } else {
                    filter_record_batch(&returned, &done).map_err(crate::errors::from_arrow)?
                };
                written.returned.push(returned);
            }
            Ok::<bool, Error>(true)
        };
        let mut is_done = true;
        while is_done && let Some(batch) = self.batches.blocking_next() {
            is_done = write(transaction, &batch?, None)?;
        }
        if is_done && let Some((now, again)) = look_again(transaction, &def, self.tree.as_deref(), self.reevaluation)? {
            for batch in again.iter().flatten() {
                is_done &= write(transaction, batch, Some(&now))?;
            }
            is_done &= again.is_some();
        }
        Ok(Written { again: !is_done, ..written })
    }
}

/// The rows that a statement was to change and that others had changed meanwhile, as they are now; and what its plan gives
/// for them. `None` where there are none; no batches where the plan cannot be run again.
#[expect(clippy::type_complexity, reason = "both callers take it apart at once")]
pub(super) fn look_again(
    transaction: &mut Transaction,
    def: &TableDef,
    tree: Option<&PartitionTree>,
    reevaluation: &Reevaluation,
) -> Result<Option<(Arc<TableVersion>, Option<Vec<RecordBatch>>)>> {
    if let Some(tree) = tree {
        // A row that is gone may be in another partition now.
        return match tree.leaves().iter().any(|leaf| transaction.has_newer(*leaf)) {
            true => Ok(Some((transaction.look_again(def)?, None))),
            false => Ok(None),
        };
    }
    let newer = newer_of(transaction, def, None)?;
    if newer.is_empty() {
        return Ok(None);
    }
    let now = transaction.look_again(def)?;
    match <[_; 1]>::try_from(newer) {
        Ok([(_, rows)]) if reevaluation.is_possible(true)? => {
            let batches = reevaluation.rows(&[(now.clone(), rows)])?;
            Ok(Some((now, Some(batches))))
        }
        _ => Ok(Some((now, None))),
    }
}

/// Rows of a table, or of its partitions, that a statement was to write and that others had changed meanwhile.
pub(super) fn newer_of(
    transaction: &Transaction,
    def: &TableDef,
    tree: Option<&PartitionTree>,
) -> Result<Vec<(RelationName, Vec<RowId>)>> {
    let mut newer = Vec::new();
    match tree {
        None => newer.push((RelationName::from(def), transaction.newer(def.id))),
        Some(tree) => {
            for (ordinal, leaf) in tree.leaves().iter().enumerate() {
                newer.push((transaction.leaf_name(tree, ordinal)?, transaction.newer(*leaf)));
            }
        }
    }
    newer.retain(|(_, rows)| !rows.is_empty());
    Ok(newer)
}

fn ids_of(batch: &RecordBatch) -> Result<Vec<RowId>> {
    let ids = batch.column(0).as_primitive_opt::<Int64Type>();
    let ids = ids.ok_or_else(|| Error::internal("a change's rows have no ids"))?;
    Ok(ids.values().iter().map(|id| RowId(*id as u64)).collect())
}

pub(super) fn part(batch: &RecordBatch, columns: std::ops::Range<usize>) -> Result<RecordBatch> {
    let columns: Vec<usize> = columns.collect();
    batch.project(&columns).map_err(crate::errors::from_arrow)
}
