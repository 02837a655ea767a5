//! Dependencies among transactions, and cycles of them.

use std::collections::VecDeque;

/// Why one transaction comes before another (Adya, Weak Consistency, 1999, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The other one's version takes the place of this one's.
    Ww,
    /// The other one read this one's version.
    Wr,
    /// The other one's version takes the place of what this one read.
    Rw,
    /// This one had ended before the other one began.
    RealTime,
}

#[derive(Default)]
pub struct Graph {
    edges: Vec<Vec<(usize, Kind)>>,
}

/// Nodes, each with the kind of the edge that leads on to the next one, and from the last to the first.
pub type Cycle = Vec<(usize, Kind)>;

impl Graph {
    pub fn new(nodes: usize) -> Graph {
        Graph { edges: vec![Vec::new(); nodes] }
    }

    pub fn add_node(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    pub fn add(&mut self, from: usize, to: usize, kind: Kind) {
        if from != to {
            self.edges[from].push((to, kind));
        }
    }

    /// A cycle of allowed edges, as short as some looking finds one. `apart`: no two edges of kind `Rw` follow one another.
    pub fn cycle(&self, allowed: &dyn Fn(usize, Kind) -> bool, apart: bool) -> Option<Cycle> {
        // States: a node, and whether it was come to by an edge of kind `Rw`.
        let next = |state: usize| {
            let (node, by_rw) = (state / 2, state % 2 == 1);
            self.edges[node]
                .iter()
                .filter(move |(_, kind)| allowed(node, *kind) && !(apart && by_rw && *kind == Kind::Rw))
                .map(move |(to, kind)| (to * 2 + usize::from(apart && *kind == Kind::Rw), *kind))
        };
        let components = components(self.edges.len() * 2, &|state| next(state).map(|(to, _)| to).collect());
        let mut states: Vec<Vec<usize>> = Vec::new();
        for (state, component) in components.iter().enumerate() {
            if states.len() <= *component {
                states.resize(component + 1, Vec::new());
            }
            states[*component].push(state);
        }
        let tangled = states.iter().filter(|states| states.len() > 1).min_by_key(|states| states.len())?;
        const LOOKS: usize = 100;
        let shortest = |start: usize| {
            let mut before = vec![None; components.len()];
            let mut queue = VecDeque::from([start]);
            while let Some(state) = queue.pop_front() {
                for (to, kind) in next(state).filter(|(to, _)| components[*to] == components[start]) {
                    if before[to].is_some() {
                        continue;
                    }
                    before[to] = Some((state, kind));
                    queue.push_back(to);
                }
                if let Some((mut at, kind)) = before[start] {
                    let mut cycle = vec![(at / 2, kind)];
                    while at != start {
                        let (state, kind) = before[at]?;
                        cycle.push((state / 2, kind));
                        at = state;
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
            }
            None
        };
        tangled.iter().take(LOOKS).filter_map(|start| shortest(*start)).min_by_key(Vec::len)
    }
}

/// Of each node, the number of its strongly connected component (Tarjan 1972, with a stack of its own).
fn components(nodes: usize, next: &dyn Fn(usize) -> Vec<usize>) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let (mut index, mut low, mut of) = (vec![NONE; nodes], vec![0; nodes], vec![NONE; nodes]);
    let (mut found, mut components) = (0, 0);
    let mut open = Vec::new();
    for root in 0..nodes {
        if index[root] != NONE {
            continue;
        }
        let mut calls: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut enter = Some(root);
        loop {
            if let Some(node) = enter.take() {
                (index[node], low[node]) = (found, found);
                found += 1;
                open.push(node);
                calls.push((node, next(node)));
            }
            let Some((node, left)) = calls.last_mut() else { break };
            let node = *node;
            if let Some(to) = left.pop() {
                if index[to] == NONE {
                    enter = Some(to);
                } else if of[to] == NONE {
                    low[node] = low[node].min(index[to]);
                }
                continue;
            }
            calls.pop();
            if let Some((parent, _)) = calls.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == index[node] {
                while let Some(member) = open.pop() {
                    of[member] = components;
                    if member == node {
                        break;
                    }
                }
                components += 1;
            }
        }
    }
    of
}
