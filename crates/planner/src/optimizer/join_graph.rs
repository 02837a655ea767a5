//! The search for an order: relations, what connects them, and the cheapest tree over them.
//!
//! Cost is rows: those that every join hands on (C_out), and those that it builds a hash table of and probes it with.
//! How many rows a set of relations has depends on the set only, never on the order in which it was put together, so the
//! cheapest tree of a set is made of cheapest trees of its parts. Up to [`EXHAUSTIVE_MAX`] relations every tree without
//! cross products is looked at, smaller sets first; beyond, the cheapest next join is taken again and again.

/// A set of relations, one bit each.
pub type Set = u64;

/// Relations up to which all orders are tried: 3^11 splits take a few milliseconds.
const EXHAUSTIVE_MAX: usize = 11;

/// Cost of a row, relative to one that a join hands on.
const BUILD: f64 = 1.5;
const PROBE: f64 = 0.5;

/// Beyond any plan that joins something.
const CROSS_PENALTY: f64 = 10.0;

/// How a relation takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Joined like any other.
    Inner,
    /// Joined to whatever holds `requires`, on its own condition (outer, semi and anti joins). Every such row of those
    /// then counts `factor` times.
    Attached { requires: Set, factor: f64 },
}

#[derive(Clone, Debug)]
pub struct Relation {
    pub rows: f64,
    pub role: Role,
}

/// Columns that are equal to each other: for each relation that has one, how many different values it takes.
#[derive(Clone, Debug)]
pub struct Class {
    pub members: Vec<(usize, f64)>,
}

/// A condition that is not a class's.
#[derive(Clone, Debug)]
pub struct Condition {
    pub relations: Set,
    /// The relations of either side, when it is an equality that a hash join can use.
    pub sides: Option<(Set, Set)>,
    pub pass: f64,
}

#[derive(Clone, Debug, Default)]
pub struct JoinGraph {
    pub relations: Vec<Relation>,
    pub classes: Vec<Class>,
    pub conditions: Vec<Condition>,
    /// Sets of two relations whose keys go together, and by how much more rows they then have than the keys alone say.
    pub joint: Vec<(Set, f64)>,
}

/// A tree: a relation, or a join of two (the left one is built, the right one probes).
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    Relation(usize),
    Join {
        set: Set,
        left: Box<Tree>,
        right: Box<Tree>,
    },
    /// `relation` joined to `input` on its own condition.
    Attach {
        set: Set,
        input: Box<Tree>,
        relation: usize,
    },
}

impl Tree {
    pub fn set(&self) -> Set {
        match self {
            Tree::Relation(relation) => 1 << relation,
            Tree::Join { set, .. } | Tree::Attach { set, .. } => *set,
        }
    }
}

#[derive(Clone)]
struct Candidate {
    rows: f64,
    cost: f64,
    /// The build side of its last join; the whole set when it is a single relation.
    left: Set,
}

impl JoinGraph {
    fn all(&self) -> Set {
        if self.relations.len() == 64 { Set::MAX } else { (1 << self.relations.len()) - 1 }
    }

    /// Rows of the join of a set.
    pub fn rows(&self, set: Set) -> f64 {
        let mut rows = 1.0;
        for (index, relation) in self.relations.iter().enumerate() {
            if set & (1 << index) != 0 {
                rows *= match relation.role {
                    Role::Inner => relation.rows,
                    Role::Attached { factor, .. } => factor,
                };
            }
        }
        for class in &self.classes {
            let (mut product, mut smallest) = (1.0, f64::INFINITY);
            for (relation, distinct) in &class.members {
                if set & (1 << relation) != 0 {
                    product *= distinct;
                    smallest = smallest.min(*distinct);
                }
            }
            if smallest.is_finite() {
                rows /= product / smallest;
            }
        }
        for condition in &self.conditions {
            if condition.relations & !set == 0 {
                rows *= condition.pass;
            }
        }
        for (pair, more) in &self.joint {
            if pair & !set == 0 {
                rows *= more;
            }
        }
        rows.max(1.0)
    }

    /// For each relation, those that an equality of one column of each (or of expressions over one relation each) joins
    /// it with.
    fn neighbours(&self) -> Vec<Set> {
        let mut neighbours = vec![0; self.relations.len()];
        let mut unite = |one: Set, other: Set| {
            for (relation, set) in neighbours.iter_mut().enumerate() {
                if one & (1 << relation) != 0 {
                    *set |= other;
                }
                if other & (1 << relation) != 0 {
                    *set |= one;
                }
            }
        };
        for class in &self.classes {
            let all = class.members.iter().fold(0, |set, (relation, _)| set | 1 << relation);
            unite(all, all);
        }
        for condition in &self.conditions {
            if let Some((one, other)) = condition.sides
                && one.count_ones() == 1
                && other.count_ones() == 1
            {
                unite(one, other);
            }
        }
        neighbours
    }

    /// Whether an equality with several relations on a side joins the two sets.
    fn connected_by_many(&self, left: Set, right: Set) -> bool {
        self.conditions.iter().any(|condition| match condition.sides {
            Some((one, other)) => {
                (one & !left == 0 && other & !right == 0) || (one & !right == 0 && other & !left == 0)
            }
            None => false,
        })
    }

    /// Sets that no equality connects with each other. Attached relations belong to what they require.
    fn components(&self) -> Vec<Set> {
        let mut components: Vec<Set> = (0..self.relations.len()).map(|index| 1 << index).collect();
        let mut unite = |set: Set| {
            if set == 0 {
                return;
            }
            let (touched, mut rest): (Vec<Set>, Vec<Set>) = components.iter().partition(|part| **part & set != 0);
            rest.push(touched.into_iter().fold(0, |sum, part| sum | part));
            components = rest;
        };
        for class in &self.classes {
            unite(class.members.iter().fold(0, |set, (relation, _)| set | 1 << relation));
        }
        for condition in &self.conditions {
            if let Some((one, other)) = condition.sides {
                unite(one | other);
            }
        }
        for (index, relation) in self.relations.iter().enumerate() {
            if let Role::Attached { requires, .. } = relation.role {
                unite(requires | 1 << index);
            }
        }
        components
    }

    /// Whether two sets may be joined by no equality at all: both are whole components, or one is and has one row.
    fn may_cross(left: (Set, f64), right: (Set, f64), components: &[Set]) -> bool {
        if components.len() < 2 {
            return false;
        }
        let whole = |set: Set| components.iter().all(|part| part & set == 0 || part & !set == 0);
        (whole(left.0) && (left.1 <= 1.0 || whole(right.0))) || (whole(right.0) && right.1 <= 1.0)
    }

    fn is_attached(&self, relation: usize) -> bool {
        matches!(self.relations[relation].role, Role::Attached { .. })
    }

    /// The cheapest tree over all relations; `None` when only a cross product could connect what is connected.
    pub fn best_tree(&self) -> Option<Tree> {
        match self.relations.len() {
            0 => None,
            count if count <= EXHAUSTIVE_MAX => self.exhaustive(),
            _ => self.greedy(),
        }
    }

    fn join_cost(&self, rows: f64, left: f64, right: f64) -> f64 {
        rows + BUILD * left.min(right) + PROBE * left.max(right)
    }

    /// What attaching `relation` to `input` costs, or `None` if it cannot be attached there.
    fn attach_cost(&self, input: Set, input_rows: f64, relation: usize, rows: f64) -> Option<f64> {
        let Role::Attached { requires, .. } = self.relations[relation].role else { return None };
        (requires & !input == 0).then(|| self.join_cost(rows, input_rows, self.relations[relation].rows))
    }

    fn exhaustive(&self) -> Option<Tree> {
        let count = self.relations.len();
        let components = self.components();
        let neighbours = self.neighbours();
        // What the relations of a set have for neighbours, together.
        let mut around: Vec<Set> = vec![0; 1 << count];
        for set in 1..around.len() {
            around[set] = around[set & (set - 1)] | neighbours[set.trailing_zeros() as usize];
        }
        let mut best: Vec<Option<Candidate>> = vec![None; 1 << count];
        for relation in 0..count {
            if !self.is_attached(relation) {
                best[1 << relation] =
                    Some(Candidate { rows: self.relations[relation].rows.max(1.0), cost: 0.0, left: 1 << relation });
            }
        }
        for set in 1..best.len() as Set {
            if set.count_ones() < 2 {
                continue;
            }
            let rows = self.rows(set);
            let mut winner: Option<Candidate> = None;
            let mut offer = |cost: f64, left: Set| {
                if winner.as_ref().is_none_or(|known| cost < known.cost) {
                    winner = Some(Candidate { rows, cost, left });
                }
            };
            // Attaching one relation to the rest.
            for relation in (0..count).filter(|relation| set & (1 << relation) != 0 && self.is_attached(*relation)) {
                let rest = set & !(1 << relation);
                if let Some(input) = &best[rest as usize]
                    && let Some(cost) = self.attach_cost(rest, input.rows, relation, rows)
                {
                    offer(input.cost + cost, rest);
                }
            }
            // Joining two parts; the one with the lowest relation is looked at as the left one only.
            let lowest = set & set.wrapping_neg();
            let mut left = (set - 1) & set;
            while left != 0 {
                let right = set & !left;
                if left & lowest != 0
                    && let (Some(one), Some(other)) = (&best[left as usize], &best[right as usize])
                {
                    let joined = around[left as usize] & right != 0 || self.connected_by_many(left, right);
                    if joined || Self::may_cross((left, one.rows), (right, other.rows), &components) {
                        let mut cost = self.join_cost(rows, one.rows, other.rows);
                        if !joined {
                            cost += CROSS_PENALTY * one.rows * other.rows;
                        }
                        let built = if one.rows <= other.rows { left } else { right };
                        offer(one.cost + other.cost + cost, built);
                    }
                }
                left = (left - 1) & set;
            }
            best[set as usize] = winner;
        }
        self.tree_of(self.all(), &best)
    }

    fn tree_of(&self, set: Set, best: &[Option<Candidate>]) -> Option<Tree> {
        let candidate = best[set as usize].as_ref()?;
        if candidate.left == set {
            return Some(Tree::Relation(set.trailing_zeros() as usize));
        }
        let rest = set & !candidate.left;
        let relation = rest.trailing_zeros() as usize;
        if rest.count_ones() == 1 && self.is_attached(relation) {
            let input = Box::new(self.tree_of(candidate.left, best)?);
            return Some(Tree::Attach { set, input, relation });
        }
        Some(Tree::Join {
            set,
            left: Box::new(self.tree_of(candidate.left, best)?),
            right: Box::new(self.tree_of(rest, best)?),
        })
    }

    fn greedy(&self) -> Option<Tree> {
        let components = self.components();
        let neighbours = self.neighbours();
        let connected = |left: Set, right: Set| {
            neighbours.iter().enumerate().any(|(relation, set)| left & (1 << relation) != 0 && set & right != 0)
                || self.connected_by_many(left, right)
        };
        let mut trees: Vec<(Tree, f64)> = (0..self.relations.len())
            .filter(|relation| !self.is_attached(*relation))
            .map(|relation| (Tree::Relation(relation), self.relations[relation].rows.max(1.0)))
            .collect();
        let mut attached: Vec<usize> = (0..self.relations.len()).filter(|r| self.is_attached(*r)).collect();
        while trees.len() + attached.len() > 1 {
            let mut choice: Option<(f64, f64, usize, Option<usize>, usize)> = None;
            let mut offer = |cost: f64, rows: f64, one: usize, other: Option<usize>, relation: usize| {
                if choice.as_ref().is_none_or(|known| cost < known.0) {
                    choice = Some((cost, rows, one, other, relation));
                }
            };
            for (one, (tree, tree_rows)) in trees.iter().enumerate() {
                for &relation in &attached {
                    let rows = self.rows(tree.set() | 1 << relation);
                    if let Some(cost) = self.attach_cost(tree.set(), *tree_rows, relation, rows) {
                        offer(cost, rows, one, None, relation);
                    }
                }
                for (other, (second, second_rows)) in trees.iter().enumerate().skip(one + 1) {
                    let joined = connected(tree.set(), second.set());
                    let (left, right) = ((tree.set(), *tree_rows), (second.set(), *second_rows));
                    if joined || Self::may_cross(left, right, &components) {
                        let rows = self.rows(tree.set() | second.set());
                        let mut cost = self.join_cost(rows, *tree_rows, *second_rows);
                        if !joined {
                            cost += CROSS_PENALTY * tree_rows * second_rows;
                        }
                        offer(cost, rows, one, Some(other), 0);
                    }
                }
            }
            let (_, rows, one, other, relation) = choice?;
            match other {
                Some(other) => {
                    let (second, second_rows) = trees.swap_remove(other);
                    let (first, first_rows) = trees.swap_remove(one);
                    let set = first.set() | second.set();
                    let (left, right) = if first_rows <= second_rows { (first, second) } else { (second, first) };
                    trees.push((Tree::Join { set, left: Box::new(left), right: Box::new(right) }, rows));
                }
                None => {
                    let (input, _) = trees.swap_remove(one);
                    let set = input.set() | 1 << relation;
                    attached.retain(|known| *known != relation);
                    trees.push((Tree::Attach { set, input: Box::new(input), relation }, rows));
                }
            }
        }
        trees.pop().map(|(tree, _)| tree)
    }
}
