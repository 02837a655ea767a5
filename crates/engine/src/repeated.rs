//! Parts of a plan that occur in it several times, computed once.
//!
//! Groupings and windows are looked for: what they give is mostly much less than what they read. Two are the same if they are so
//! operator by operator, over the same versions of the same tables. Those whose scans would be told by a join outside which
//! rows matter, or by a sort, stay apart: each may read a small part of what all of them have in common.

use crate::plan::{Op, Plan, Subquery, reached};
use crate::scan::ScanSource;
use hashbrown::HashSet;
use std::sync::Arc;

/// A plan, or the plan of a subquery and what that is for, in the order in which they run.
type Step = (Option<Subquery>, Plan);

/// Where a part of a plan is: the step, and which input to take at each operator on the way.
#[derive(Clone, Debug)]
struct Place {
    step: usize,
    path: Vec<usize>,
}

impl Plan {
    /// The same result, with what occurs several times computed once.
    pub fn with_common(self) -> Plan {
        if !has_a_table_twice(&self) {
            return self;
        }
        let mut steps = steps_of(self);
        for number in 0.. {
            let Some(places) = repeated(&steps) else { break };
            let first = places[0].step;
            let mut body = None;
            for place in places {
                let at = part_mut(&mut steps[place.step].1, &place.path);
                let rows = Plan::common(number, at.types.clone()).like(&at.rows_estimated);
                let before = std::mem::replace(at, rows);
                body.get_or_insert(before);
            }
            // Whatever it refers to is there by then, as it was for its first reader.
            steps.extend(body.map(|body| (Some(Subquery::Rows(number)), body)));
            steps[first..].rotate_right(1);
        }
        together(steps)
    }
}

fn has_a_table_twice(plan: &Plan) -> bool {
    let mut versions = HashSet::new();
    let is_new = |scan: &Arc<ScanSource>| scan.parts.iter().all(|part| versions.insert(Arc::as_ptr(&part.version)));
    !scans_of(plan).iter().all(is_new)
}

fn scans_of(plan: &Plan) -> Vec<Arc<ScanSource>> {
    let scan = |node: &Plan| match &node.op {
        Op::Scan(scan) => Some(Arc::clone(scan)),
        _ => None,
    };
    plan.nodes().into_iter().filter_map(scan).collect()
}

fn steps_of(plan: Plan) -> Vec<Step> {
    match plan.op {
        Op::Subqueries(uses) => {
            let mut inputs = plan.inputs.into_iter();
            let main = inputs.next();
            let subqueries = uses.into_iter().map(Some).zip(inputs);
            subqueries.chain(main.map(|main| (None, main))).collect()
        }
        _ => vec![(None, plan)],
    }
}

fn together(mut steps: Vec<Step>) -> Plan {
    let Some((None, main)) = steps.pop() else { unreachable!("the last step is the plan itself") };
    main.with_subqueries(steps.into_iter().filter_map(|(used, plan)| Some((used?, plan))).collect())
}

fn part<'p>(plan: &'p Plan, path: &[usize]) -> &'p Plan {
    path.iter().fold(plan, |plan, input| &plan.inputs[*input])
}

fn part_mut<'p>(plan: &'p mut Plan, path: &[usize]) -> &'p mut Plan {
    path.iter().fold(plan, |plan, input| &mut plan.inputs[*input])
}

fn is_candidate(plan: &Plan) -> bool {
    match &plan.op {
        Op::Aggregate(_) | Op::GroupingSets(_) => true,
        Op::Window(window) => !window.numbers_rows(),
        _ => false,
    }
}

fn candidates(plan: &Plan, step: usize, path: &mut Vec<usize>, found: &mut Vec<Place>) {
    if is_candidate(plan) {
        found.push(Place { step, path: path.clone() });
    }
    for (index, input) in plan.inputs.iter().enumerate() {
        path.push(index);
        candidates(input, step, path, found);
        path.pop();
    }
}

/// All places of a part that occurs at several of them; a part before its own parts.
fn repeated(steps: &[Step]) -> Option<Vec<Place>> {
    let mut places = Vec::new();
    for (step, (_, plan)) in steps.iter().enumerate() {
        candidates(plan, step, &mut Vec::new(), &mut places);
    }
    let at = |place: &Place| part(&steps[place.step].1, &place.path);
    let all = places.iter().enumerate().filter_map(|(index, place)| {
        let others = places[index + 1..].iter().filter(|other| is_same(at(place), at(other)));
        let all: Vec<Place> = std::iter::once(place).chain(others).cloned().collect();
        (all.len() > 1).then_some(all)
    });
    all.into_iter().find(|places| !is_narrowed(steps, &places.iter().map(at).collect::<Vec<_>>()))
}

/// Whether a scan within one of `parts` is told from outside which rows matter, by something that leaves rows out.
fn is_narrowed(steps: &[Step], parts: &[&Plan]) -> bool {
    let within: HashSet<*const ScanSource> =
        parts.iter().flat_map(|part| scans_of(part)).map(|scan| Arc::as_ptr(&scan)).collect();
    let outside = |plan: &Plan| !parts.iter().any(|part| std::ptr::eq(*part, plan));
    let reaches = |plan: &Plan, column: usize| {
        let mut reaches = false;
        reached(plan, column, &mut |scan, _| reaches |= within.contains(&Arc::as_ptr(&scan)));
        reaches
    };
    let narrows = |plan: &Plan| match &plan.op {
        Op::Join(join) => {
            let [probe, build] = plan.inputs.as_slice() else { return false };
            leaves_rows_out(build, &outside) && join.filtering_keys().any(|(_, key)| reaches(probe, key.probe))
        }
        Op::Sort { keys, limit: Some(_) } => keys.first().is_some_and(|key| reaches(&plan.inputs[0], key.column)),
        _ => false,
    };
    steps.iter().any(|(_, plan)| any(plan, &outside, &narrows))
}

/// Of the operators above parts that `goes_on` stops at.
fn any(plan: &Plan, goes_on: &dyn Fn(&Plan) -> bool, is: &dyn Fn(&Plan) -> bool) -> bool {
    goes_on(plan) && (is(plan) || plan.inputs.iter().any(|input| any(input, goes_on, is)))
}

fn leaves_rows_out(plan: &Plan, goes_on: &dyn Fn(&Plan) -> bool) -> bool {
    any(plan, goes_on, &|plan| match &plan.op {
        Op::Filter(_) | Op::Limit { .. } | Op::Sort { limit: Some(_), .. } => true,
        Op::Scan(scan) => !scan.filters.is_empty() || scan.limit.is_some(),
        _ => false,
    })
}

/// Whether both give the same rows, as the same columns.
fn is_same(a: &Plan, b: &Plan) -> bool {
    let is_same_operator = match (&a.op, &b.op) {
        (Op::Scan(a), Op::Scan(b)) => is_same_scan(a, b),
        (Op::Filter(a), Op::Filter(b)) => a == b,
        (Op::Project(a), Op::Project(b)) => a == b,
        (Op::Join(a), Op::Join(b)) => a == b,
        (Op::Aggregate(a), Op::Aggregate(b)) => a == b,
        (Op::GroupingSets(a), Op::GroupingSets(b)) => a == b,
        (Op::Window(a), Op::Window(b)) => a == b,
        (Op::Union, Op::Union) => true,
        (Op::Common(a), Op::Common(b)) => a == b,
        (Op::Sort { keys: a, limit: None }, Op::Sort { keys: b, limit: None }) => a == b,
        // Which rows come first is not certain; streams and constants are not looked into.
        _ => false,
    };
    is_same_operator
        && a.types == b.types
        && a.inputs.len() == b.inputs.len()
        && a.inputs.iter().zip(&b.inputs).all(|(a, b)| is_same(a, b))
}

fn is_same_scan(a: &ScanSource, b: &ScanSource) -> bool {
    let is_same_part = |(a, b): (&crate::scan::ScanPart, &crate::scan::ScanPart)| {
        Arc::ptr_eq(&a.version, &b.version) && a.access.is_none() && b.access.is_none()
    };
    let columns = |scan: &ScanSource| scan.columns.iter().map(|column| column.column).collect::<Vec<_>>();
    a.limit.is_none()
        && b.limit.is_none()
        && a.parts.len() == b.parts.len()
        && a.parts.iter().zip(&b.parts).all(is_same_part)
        && columns(a) == columns(b)
        && a.filters == b.filters
}
