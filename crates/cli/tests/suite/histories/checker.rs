//! Searches a history for what its transactions' isolation levels forbid.
//!
//! Every version's writer is known, as values are unique, and so is the order of a key's versions: a list shows it, and who writes a
//! register is told what he replaced (Kingsbury and Alvaro, Elle, VLDB 2020, section 4). So ww, wr and rw dependencies are
//! exact. What reads of a whole group miss is a read, too: of a key without a row.
//!
//! Forbidden at every level: G0 and G1 (Adya 1999, section 3.2). A transaction with one snapshot: any cycle in which no two anti-dependencies follow
//! one another (Fekete et al., Making Snapshot Isolation Serializable, TODS 2005, theorem 2.1; Cerone and Gotsman,
//! Analysing Snapshot Isolation, JACM 2018, theorem 4.3): G-single, lost updates, non-repeatable reads and phantoms are of that
//! kind. A serializable transaction: any cycle over its anti-dependencies. Anti-dependencies of transactions of `READ COMMITTED` are in
//! no cycle that counts, so levels may be mixed (Adya, section 5.3).
//!
//! Who begins after another was acknowledged sees it: that is an edge of real time, at every level.

use super::graph::{Cycle, Graph, Kind};
use super::history::{History, Key, Level, Op, Transaction};
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(Clone, Debug)]
pub struct Anomaly {
    pub name: &'static str,
    pub about: String,
}

/// One key's versions in order; the first has no writer.
#[derive(Debug, Default)]
struct Order {
    versions: Vec<Version>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    writer: Option<usize>,
    value: Option<i64>,
}

struct Checker<'h> {
    history: &'h History,
    anomalies: Vec<Anomaly>,
    /// By table and value: transaction, and whether it stayed.
    writers: HashMap<(&'static str, i64), (usize, bool)>,
    orders: BTreeMap<Key, Order>,
    graph: Graph,
}

/// What was found, the worst first; of cycles one of each kind.
pub fn check(history: &History) -> Vec<Anomaly> {
    let mut checker = Checker {
        history,
        anomalies: Vec::new(),
        writers: HashMap::new(),
        orders: BTreeMap::new(),
        graph: Graph::new(history.len()),
    };
    checker.find_writers();
    checker.order_lists();
    checker.order_registers();
    checker.depend();
    checker.add_real_time();
    checker.find_cycles();
    checker.anomalies
}

/// The operation in a few words.
fn told(transaction: &Transaction) -> String {
    let steps: Vec<String> = transaction
        .steps
        .iter()
        .map(|step| format!("{:?}{}", step.op, if step.undone { " (undone)" } else { "" }))
        .collect();
    format!(
        "session {} {:?} {}..{} {}:\n    {}",
        transaction.session,
        transaction.level,
        transaction.began,
        transaction.ended,
        if transaction.committed { "committed" } else { "aborted" },
        steps.join("\n    ")
    )
}

impl<'h> Checker<'h> {
    fn report(&mut self, name: &'static str, about: String) {
        self.anomalies.push(Anomaly { name, about });
    }

    fn committed(&self) -> impl Iterator<Item = (usize, &'h Transaction)> + use<'h> {
        self.history.iter().enumerate().filter(|(_, transaction)| transaction.committed)
    }

    fn find_writers(&mut self) {
        for (number, transaction) in self.history.iter().enumerate() {
            for step in &transaction.steps {
                let (key, value) = match step.op {
                    Op::Append { key, value } => (key, value),
                    Op::Write { key, value: Some(value), .. } => (key, value),
                    _ => continue,
                };
                let stayed = transaction.committed && !step.undone;
                let known = self.writers.insert((key.table, value), (number, stayed));
                assert!(known.is_none(), "values are unique: {key:?} {value}");
            }
        }
    }

    /// Who wrote a value that `reader` saw, whatever became of him.
    fn writer(&mut self, reader: usize, key: Key, value: i64) -> Option<usize> {
        match self.writers.get(&(key.table, value)) {
            None => {
                let about = format!("{key:?} has {value}, which nobody wrote\n  {}", told(&self.history[reader]));
                self.report("a value from nowhere", about);
                None
            }
            Some((writer, stayed)) => {
                if !stayed && *writer != reader {
                    let about = format!(
                        "{key:?} has {value}, which was rolled back\n  {}\n  {}",
                        told(&self.history[reader]),
                        told(&self.history[*writer])
                    );
                    self.report("G1a", about);
                    return None;
                }
                Some(*writer)
            }
        }
    }

    fn order_lists(&mut self) {
        let history = self.history;
        // The longest that somebody saw.
        let mut longest: BTreeMap<Key, (usize, &'h [i64])> = BTreeMap::new();
        for (number, transaction) in self.committed() {
            for step in &transaction.steps {
                if let Op::List { key, values } = &step.op
                    && longest.get(key).is_none_or(|(_, known)| known.len() < values.len())
                    // What is rolled back later is seen by its own transaction.
                    && values.iter().all(|value| {
                        self.writers.get(&(key.table, *value)).is_none_or(|(writer, stayed)| *stayed || *writer != number)
                    })
                {
                    longest.insert(*key, (number, values));
                }
            }
        }
        for (key, (reader, values)) in &longest {
            let mut versions = vec![Version { writer: None, value: None }];
            for value in *values {
                let writer = self.writer(*reader, *key, *value);
                versions.push(Version { writer, value: Some(*value) });
            }
            let distinct: HashSet<&i64> = values.iter().collect();
            if distinct.len() < values.len() {
                self.report("a duplicate", format!("{key:?} has {values:?}"));
            }
            self.orders.insert(*key, Order { versions });
        }
        // Who reads a list later than an append was acknowledged sees it.
        for (number, transaction) in self.committed() {
            for step in transaction.steps.iter().filter(|step| !step.undone) {
                let Op::Append { key, value } = &step.op else { continue };
                let there = longest.get(key).is_some_and(|(_, values)| values.contains(value));
                let later = history.iter().find(|other| {
                    let reads =
                        |step: &super::history::Step| matches!(&step.op, Op::List { key: read, .. } if read == key);
                    other.committed && other.began > transaction.ended && other.steps.iter().any(reads)
                });
                if let (false, Some(later)) = (there, later) {
                    let about = format!(
                        "{value} was appended to {key:?} and is not there\n  {}\n  {}",
                        told(&history[number]),
                        told(later)
                    );
                    self.report("a lost append", about);
                }
            }
        }
    }

    fn order_registers(&mut self) {
        type Next = HashMap<Option<i64>, (usize, Option<i64>)>;
        let mut next: BTreeMap<Key, Next> = BTreeMap::new();
        let history = self.history;
        for (number, transaction) in self.committed() {
            for step in transaction.steps.iter().filter(|step| !step.undone) {
                let Op::Write { key, before, value } = &step.op else { continue };
                if let Some(before) = before {
                    self.writer(number, *key, *before);
                }
                if let Some((other, _)) = next.entry(*key).or_default().insert(*before, (number, *value)) {
                    let about = format!(
                        "two replaced {before:?} of {key:?}\n  {}\n  {}",
                        told(&history[other]),
                        told(transaction)
                    );
                    self.report("a lost update", about);
                }
            }
        }
        for (key, mut next) in next {
            let mut versions = vec![Version { writer: None, value: None }];
            let mut at = None;
            while let Some((writer, value)) = next.remove(&at) {
                versions.push(Version { writer: Some(writer), value });
                if value.is_none() {
                    break;
                }
                at = value;
            }
            for (before, (number, _)) in next {
                let about =
                    format!("{before:?} of {key:?} was replaced, which is in no order\n  {}", told(&history[number]));
                self.report("a write out of order", about);
            }
            self.orders.insert(key, Order { versions });
        }
    }

    fn depend(&mut self) {
        for order in self.orders.values() {
            for pair in order.versions.windows(2) {
                if let (Some(before), Some(after)) = (pair[0].writer, pair[1].writer) {
                    self.graph.add(before, after, Kind::Ww);
                }
            }
        }
        let by_group = |checker: &Checker<'_>, table, group| -> Vec<Key> {
            let (first, last) = (Key { table, group, id: i64::MIN }, Key { table, group, id: i64::MAX });
            checker.orders.range(first..=last).map(|(key, _)| *key).collect()
        };
        for (number, transaction) in self.committed() {
            // The last version of each key that it wrote, or saw, itself.
            let mut own: HashMap<Key, Op> = HashMap::new();
            for step in &transaction.steps {
                match &step.op {
                    // What was undone may have been seen in between: nothing is compared with it.
                    op @ (Op::Append { key, .. } | Op::Write { key, .. }) => {
                        own.insert(*key, op.clone());
                    }
                    Op::List { key, values } => self.read_list(number, *key, values, own.get(key)),
                    Op::Length { key, length } => self.read_version(number, *key, *length),
                    Op::Row { key, value } => self.read_row(number, *key, *value, own.get(key)),
                    Op::Group { table, group, rows } => {
                        let rows: BTreeMap<i64, i64> = rows.iter().copied().collect();
                        for key in by_group(self, *table, *group) {
                            self.read_row(number, key, rows.get(&key.id).copied(), own.get(&key));
                        }
                        for (id, value) in rows {
                            let key = Key { table, group: *group, id };
                            if !self.orders.contains_key(&key) {
                                self.writer(number, key, value);
                            }
                        }
                    }
                }
            }
        }
    }

    fn read_list(&mut self, reader: usize, key: Key, values: &[i64], own: Option<&Op>) {
        let undone =
            |value: &i64| self.writers.get(&(key.table, *value)).is_some_and(|(by, stayed)| *by == reader && !stayed);
        if values.iter().any(undone) {
            return;
        }
        let order = self.orders.get(&key).map_or(&[][..], |order| order.versions.get(1..).unwrap_or(&[]));
        let known: Vec<i64> = order.iter().filter_map(|version| version.value).collect();
        if !known.starts_with(values) {
            values.iter().for_each(|value| {
                self.writer(reader, key, *value);
            });
            let about = format!("{key:?} was {values:?} and is {known:?}\n  {}", told(&self.history[reader]));
            self.report("incompatible orders", about);
            return;
        }
        if let Some(Op::Append { value, .. }) = own
            && values.last() != Some(value)
            && self.writers.get(&(key.table, *value)).is_some_and(|(_, stayed)| *stayed)
        {
            let about = format!("{key:?} does not end in its own {value}\n  {}", told(&self.history[reader]));
            self.report("a missed write of its own", about);
        }
        self.read_version(reader, key, values.len());
    }

    fn read_row(&mut self, reader: usize, key: Key, value: Option<i64>, own: Option<&Op>) {
        let stayed = |value| self.writers.get(&(key.table, value)).is_some_and(|(_, stayed)| *stayed);
        let stayed = value.is_some_and(stayed);
        if let Some(Op::Write { value: written, before, .. }) = own {
            let undone = self.history[reader]
                .steps
                .iter()
                .any(|step| step.undone && matches!(step.op, Op::Write { key: other, .. } if other == key));
            if undone {
                return;
            }
            if *written != value {
                let about = format!(
                    "{key:?} is {value:?} after it replaced {before:?} by {written:?}\n  {}",
                    told(&self.history[reader])
                );
                self.report("a missed write of its own", about);
            }
        }
        let Some(order) = self.orders.get(&key) else {
            if let Some(value) = value {
                self.writer(reader, key, value);
            }
            return;
        };
        let last = order.versions.len() - 1;
        let is_dead = last > 0 && order.versions[last].value.is_none();
        let place = match value {
            Some(value) => order.versions.iter().position(|version| version.value == Some(value)),
            None if !is_dead => Some(0),
            None => {
                // Not there yet, or not any more: it is told only by when it was.
                let at = |version: usize| order.versions[version].writer.map(|writer| (writer, &self.history[writer]));
                let (read, inserted, deleted) = (&self.history[reader], at(1), at(last));
                match (inserted, deleted) {
                    (_, Some((writer, _))) if writer == reader && matches!(own, Some(Op::Write { .. })) => Some(last),
                    (Some((_, inserted)), _) if read.began > inserted.ended => Some(last),
                    (_, Some((_, deleted))) if read.ended < deleted.began => Some(0),
                    _ => return,
                }
            }
        };
        match (place, value) {
            (Some(place), _) => self.read_version(reader, key, place),
            (None, Some(value)) => {
                if self.writer(reader, key, value).is_some() && stayed {
                    let about = format!("{value} of {key:?} is in no order\n  {}", told(&self.history[reader]));
                    self.report("a read out of order", about);
                }
            }
            (None, None) => {}
        }
    }

    /// What follows from `reader` having seen a key's version of that place.
    fn read_version(&mut self, reader: usize, key: Key, place: usize) {
        let Some(order) = self.orders.get(&key) else { return };
        let writer = |place: usize| order.versions.get(place).and_then(|version| version.writer);
        let (of, next) = (writer(place), writer(place + 1));
        if let Some(of) = of {
            self.graph.add(of, reader, Kind::Wr);
        }
        if let Some(next) = next {
            self.graph.add(reader, next, Kind::Rw);
        }
        if let (Some(of), Some(next)) = (of, next)
            && of == next
            && of != reader
        {
            let about =
                format!("{key:?}, version {place}\n  {}\n  {}", told(&self.history[reader]), told(&self.history[of]));
            self.report("G1b", about);
        }
    }

    /// By way of nodes for moments, each before the next one.
    fn add_real_time(&mut self) {
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for (number, transaction) in self.committed() {
            // At the same moment: begun before it ended.
            moments.push((transaction.began, false, number));
            moments.push((transaction.ended, true, number));
        }
        moments.sort_unstable();
        let mut last = None;
        for (_, is_end, number) in moments {
            if is_end {
                let moment = self.graph.add_node();
                self.graph.add(number, moment, Kind::RealTime);
                if let Some(last) = last {
                    self.graph.add(last, moment, Kind::RealTime);
                }
                last = Some(moment);
            } else if let Some(last) = last {
                self.graph.add(last, number, Kind::RealTime);
            }
        }
    }

    fn find_cycles(&mut self) {
        let history = self.history;
        let level = |node: usize| history.get(node).map_or(Level::Serializable, |transaction| transaction.level);
        let one_snapshot = |node: usize, kind: Kind| kind != Kind::Rw || level(node) >= Level::RepeatableRead;
        let serializable = |node: usize, kind: Kind| kind != Kind::Rw || level(node) == Level::Serializable;
        type Allowed<'a> = Box<dyn Fn(usize, Kind) -> bool + 'a>;
        let searches: [(&'static str, Allowed<'_>, bool); 7] = [
            ("G0", Box::new(|_, kind| kind == Kind::Ww), false),
            ("G1c", Box::new(|_, kind| matches!(kind, Kind::Ww | Kind::Wr)), false),
            ("G1c in real time", Box::new(|_, kind| kind != Kind::Rw), false),
            ("G-SI", Box::new(move |node, kind| kind != Kind::RealTime && one_snapshot(node, kind)), true),
            ("G-SI in real time", Box::new(one_snapshot), true),
            ("G2", Box::new(move |node, kind| kind != Kind::RealTime && serializable(node, kind)), false),
            ("G2 in real time", Box::new(serializable), false),
        ];
        for (name, allowed, apart) in searches {
            if let Some(cycle) = self.graph.cycle(&allowed, apart) {
                let single = cycle.iter().filter(|(_, kind)| *kind == Kind::Rw).count() == 1;
                let name = if name == "G-SI" && single { "G-single" } else { name };
                let about = self.tell(&cycle);
                self.report(name, about);
                return;
            }
        }
    }

    fn tell(&self, cycle: &Cycle) -> String {
        let mut told_of = String::new();
        for (node, kind) in cycle {
            if let Some(transaction) = self.history.get(*node) {
                told_of += &format!("\n  {}\n  --{kind:?}-->", told(transaction));
            }
        }
        told_of
    }
}
