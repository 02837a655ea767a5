//! Rows that two hosts read and write over a pod's memory.

use super::*;
use std::sync::Barrier;
use tidepool_pod::layout::{HostId, Layout};
use tidepool_pod::mapped::Mapped;
use tidepool_txn::{Clock, PodSlots};

const LAYOUT: Layout = Layout { hosts: 2, workers: 8, tuples: 16, ring_lines: 4, block_lines: 4, blocks: 64 };

/// The number that hosts know the one table by.
const STORE: u32 = 7;

struct Hosts {
    hosts: [Fixture; 2],
    members: [Arc<PodMember>; 2],
}

impl Hosts {
    fn new(layout: Layout) -> Hosts {
        let memory = Arc::new(Mapped::of_process(layout).unwrap());
        let slots = Arc::new(PodSlots::new(memory.clone(), layout));
        let clock = Clock::starting_after(CommitTs(0));
        let (mut hosts, mut members) = (Vec::new(), Vec::new());
        for host in 0..2 {
            let all = Transactions::of_host(clock.beside(), slots.clone(), host);
            let space = heap_space();
            let fixture = Fixture::of(all.clone(), &space, &space);
            let member = PodMember::new(memory.clone(), layout, HostId(host as u8), all);
            fixture.store.join(&member);
            hosts.push(fixture);
            members.push(member);
        }
        let (Ok(hosts), Ok(members)) = (hosts.try_into(), members.try_into()) else { panic!("there are two") };
        Hosts { hosts, members }
    }

    /// Sends blocks to their hosts, as messages would.
    fn send_home(&self) {
        for member in &self.members {
            for (host, word) in member.homeward() {
                self.members[usize::from(host.0)].take_home(word);
            }
        }
    }

    fn check_empty(self) {
        for host in &self.hosts {
            host.all.advance_horizon();
        }
        let workers: Vec<_> = self.hosts.iter().map(|host| host.all.worker().unwrap()).collect();
        for _ in 0..3 {
            self.hosts.iter().zip(&workers).zip(&self.members).for_each(|((host, worker), member)| {
                host.all.advance_horizon();
                member.tidy(worker);
            });
            self.send_home();
        }
        drop(workers);
        for host in self.hosts {
            host.check_empty();
        }
    }
}

impl Session {
    fn move_in(&self, row: RowId) -> MovedIn {
        let now = self.worker.snapshot_now().ts();
        self.store.move_in(&self.worker, row, STORE, now).unwrap()
    }

    /// Of a row of the other host, or in the pod and of this one.
    fn change(&mut self, row: RowId, id: i64, value: i64) -> Result<Outcome> {
        self.set(id, value);
        let view = self.worker.snapshot();
        match is_pod_row(row) {
            true => self.store.update_pod(&self.worker, &view, &mut self.writes, row, &self.image),
            false => self.store.update(&self.worker, &view, &mut self.writes, row, &self.image, Keys::Leave),
        }
    }

    fn look(&mut self, row: RowId) -> Option<(i64, i64)> {
        self.writes.read_row(&self.store, row);
        let view = self.worker.snapshot();
        match is_pod_row(row) {
            true => match self.store.read_pod(&view, row).unwrap() {
                PodRow::Image(image) => Some(row_of(&self.store, RowRef::Version(image))),
                PodRow::Newer | PodRow::Left => None,
            },
            false => self.store.read(&view, row).map(|found| row_of(&self.store, found)),
        }
    }

    fn put(&mut self, id: i64, value: i64) -> RowId {
        self.begin(Isolation::RepeatableRead);
        let row = self.insert(id, value).unwrap();
        self.commit().unwrap();
        row
    }
}

#[test]
fn a_row_is_written_by_another_host_and_comes_home() {
    let pod = Hosts::new(LAYOUT);
    let (mut home, mut old, mut other) = (pod.hosts[0].session(), pod.hosts[0].session(), pod.hosts[1].session());
    let row = home.put(1, 10);
    old.begin(Isolation::RepeatableRead);
    assert_eq!(old.look(row), Some((1, 10)));
    let MovedIn::In(there) = home.move_in(row) else { panic!("nothing is in its way") };
    assert_eq!(home.move_in(row), MovedIn::In(there), "it is there already");
    assert!(is_pod_row(there) && !is_pod_row(row));
    other.begin(Isolation::Serializable);
    assert_eq!(other.look(there), Some((1, 10)));
    assert_eq!(other.change(there, 1, 11).unwrap(), Outcome::Written);
    other.next();
    assert_eq!(other.look(there), Some((1, 11)));
    home.begin(Isolation::ReadCommitted);
    assert_eq!(home.read(row), Some((1, 10)), "it is not committed");
    assert_eq!(home.change(row, 1, 12).unwrap(), Outcome::Conflict(other.worker.tag()));
    let c = other.commit().unwrap().unwrap();
    assert_eq!(home.read(row), Some((1, 11)));
    assert_eq!(home.scan(), BTreeMap::from([(row, (1, 11))]));
    assert_eq!(old.read(row), Some((1, 10)), "an old snapshot is of the base");
    assert_eq!(old.change(row, 1, 13).unwrap(), Outcome::Newer { ts: c, deleted: false });
    assert!(!pod.hosts[0].store.move_out(&home.worker, row).unwrap(), "an old snapshot needs it");
    old.abort();
    pod.hosts[1].all.advance_horizon();
    home.abort();
    assert!(pod.hosts[0].store.move_out(&home.worker, row).unwrap());
    home.begin(Isolation::ReadCommitted);
    assert_eq!(home.read(row), Some((1, 11)));
    assert_eq!(home.update(row, 1, 14).unwrap(), Outcome::Written);
    home.commit().unwrap();
    other.begin(Isolation::Serializable);
    assert_eq!(other.look(there), None, "it has left");
    assert_eq!(other.change(there, 1, 15).unwrap(), Outcome::Deleted);
    other.abort();
    // Its tuple has another use by now.
    let MovedIn::In(again) = home.move_in(row) else { panic!("nothing is in its way") };
    assert_ne!(again, there);
    other.begin(Isolation::Serializable);
    assert_eq!((other.look(there), other.look(again)), (None, Some((1, 14))));
    other.abort();
    drop((home, old, other));
    pod.check_empty();
}

#[test]
fn what_is_taken_back_is_seen_by_nobody() {
    let pod = Hosts::new(LAYOUT);
    let (mut home, mut other) = (pod.hosts[0].session(), pod.hosts[1].session());
    let row = home.put(1, 10);
    let MovedIn::In(there) = home.move_in(row) else { panic!("nothing is in its way") };
    other.begin(Isolation::RepeatableRead);
    assert_eq!(other.change(there, 1, 11).unwrap(), Outcome::Written);
    other.next();
    let savepoint = other.writes.savepoint();
    assert_eq!(other.change(there, 1, 12).unwrap(), Outcome::Written);
    assert_eq!(other.change(there, 1, 13).unwrap(), Outcome::SelfModified);
    other.next();
    assert_eq!(other.look(there), Some((1, 12)));
    other.writes.undo_to(savepoint, &other.worker);
    assert_eq!(other.look(there), Some((1, 11)));
    other.abort();
    home.begin(Isolation::RepeatableRead);
    assert_eq!(home.change(row, 1, 20).unwrap(), Outcome::Written);
    home.commit().unwrap();
    other.begin(Isolation::RepeatableRead);
    assert_eq!(other.look(there), Some((1, 20)));
    // Two versions of one transaction, and a lock.
    assert_eq!(other.change(there, 1, 21).unwrap(), Outcome::Written);
    other.next();
    assert_eq!(other.change(there, 1, 22).unwrap(), Outcome::Written);
    home.begin(Isolation::ReadCommitted);
    assert_eq!(home.lock(row, RowLock::Share), Outcome::Conflict(other.worker.tag()));
    other.commit().unwrap();
    assert_eq!(home.read(row), Some((1, 22)));
    assert_eq!(home.lock(row, RowLock::Share), Outcome::Written);
    other.begin(Isolation::RepeatableRead);
    assert_eq!(other.change(there, 1, 23).unwrap(), Outcome::Conflict(home.worker.tag()), "shared locks are exclusive");
    home.commit().unwrap();
    drop((home, other));
    pod.check_empty();
}

#[test]
fn a_serializable_transaction_fails_where_another_host_changed_what_it_read() {
    let pod = Hosts::new(LAYOUT);
    let (mut home, mut other) = (pod.hosts[0].session(), pod.hosts[1].session());
    let (one, two) = (home.put(1, 10), home.put(2, 20));
    let (MovedIn::In(one_there), MovedIn::In(two_there)) = (home.move_in(one), home.move_in(two)) else { panic!() };
    // Write skew: each reads what the other writes.
    home.begin(Isolation::Serializable);
    other.begin(Isolation::Serializable);
    assert_eq!((home.look(one), other.look(two_there)), (Some((1, 10)), Some((2, 20))));
    assert_eq!(home.change(two, 2, 21).unwrap(), Outcome::Written);
    assert_eq!(other.change(one_there, 1, 11).unwrap(), Outcome::Written);
    home.commit().unwrap().unwrap();
    assert_eq!(other.commit().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    other.abort();
    other.begin(Isolation::Serializable);
    assert_eq!(other.look(two_there), Some((2, 21)));
    assert_eq!(other.change(one_there, 1, 11).unwrap(), Outcome::Written);
    other.commit().unwrap().unwrap();
    // A scan's conditions, of a row that another host changes.
    home.begin(Isolation::Serializable);
    home.writes.read_scan(&pod.hosts[0].store, where_id(CompareOp::Eq, 1));
    assert_eq!(home.scan().len(), 2);
    assert_eq!(home.change(two, 2, 22).unwrap(), Outcome::Written);
    other.begin(Isolation::Serializable);
    assert_eq!(other.change(one_there, 1, 12).unwrap(), Outcome::Written);
    other.commit().unwrap().unwrap();
    assert_eq!(home.commit().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    home.abort();
    drop((home, other));
    pod.check_empty();
}

#[test]
fn a_row_goes_home_before_it_is_deleted() {
    let pod = Hosts::new(LAYOUT);
    let (mut home, mut other) = (pod.hosts[0].session(), pod.hosts[1].session());
    let row = home.put(1, 10);
    let MovedIn::In(there) = home.move_in(row) else { panic!("nothing is in its way") };
    other.begin(Isolation::RepeatableRead);
    assert_eq!(other.change(there, 1, 11).unwrap(), Outcome::Written);
    home.begin(Isolation::ReadCommitted);
    assert_eq!(home.delete(row).unwrap(), Outcome::Conflict(other.worker.tag()));
    other.commit().unwrap();
    pod.hosts[1].all.advance_horizon();
    home.abort();
    home.begin(Isolation::ReadCommitted);
    assert_eq!(home.delete(row).unwrap(), Outcome::Written);
    home.commit().unwrap();
    other.begin(Isolation::RepeatableRead);
    assert_eq!(other.look(there), None);
    other.abort();
    let now = home.worker.snapshot_now().ts();
    assert_eq!(pod.hosts[0].store.move_in(&home.worker, row, STORE, now).unwrap(), MovedIn::Gone);
    drop((home, other));
    pod.check_empty();
}

/// Or another is in the way, or all blocks are on their way home.
fn is_written(outcome: Result<Outcome>) -> bool {
    match outcome {
        Ok(outcome) => outcome == Outcome::Written,
        Err(error) => {
            assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
            false
        }
    }
}

/// Amounts go back and forth between rows of two homes, which come and go; whoever looks finds one sum.
#[test]
fn hosts_move_amounts_and_rows_at_once() {
    const ROWS: usize = 4;
    let transfers = if cfg!(miri) { 10 } else { 3000 };
    let pod = Hosts::new(LAYOUT);
    let mut rows: Vec<Vec<RowId>> = Vec::new();
    for host in &pod.hosts {
        let mut session = host.session();
        rows.push((0..ROWS as i64).map(|id| session.put(id, 100)).collect());
    }
    // Where hosts know each other's rows.
    let there: [[Mutex<Option<RowId>>; ROWS]; 2] = Default::default();
    let start = Barrier::new(4);
    let committed = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut movers = Vec::new();
        for me in 0..2 {
            let (pod, rows, there, start, committed, is_over) = (&pod, &rows, &there, &start, &committed, &is_over);
            movers.push(scope.spawn(move || {
                let mut session = pod.hosts[me].session();
                let mut noise = noise(me as u64 + 1);
                let mut random = |bound: u64| noise() % bound;
                start.wait();
                let mut done = 0;
                while done < transfers {
                    let isolation = if random(2) == 0 { Isolation::Serializable } else { Isolation::RepeatableRead };
                    session.begin(isolation);
                    // One of its own, and one of the other's.
                    let (own, other) = (random(ROWS as u64) as usize, random(ROWS as u64) as usize);
                    let Some(far) = *there[1 - me][other].lock().unwrap() else {
                        session.abort();
                        std::thread::yield_now();
                        continue;
                    };
                    let near = rows[me][own];
                    let (Some((id, value)), Some((far_id, far_value))) = (session.look(near), session.look(far)) else {
                        session.abort();
                        std::thread::yield_now();
                        continue;
                    };
                    let amount = random(10) as i64;
                    let is_done = is_written(session.change(near, id, value - amount))
                        && is_written(session.change(far, far_id, far_value + amount))
                        && random(8) != 0
                        && session.commit().is_ok();
                    if is_done {
                        done += 1;
                        committed.fetch_add(1, Ordering::Relaxed);
                    } else {
                        session.abort();
                    }
                }
            }));
            // The home's own way: rows come and go.
            scope.spawn(move || {
                let session = pod.hosts[me].session();
                let mut noise = noise(me as u64 + 77);
                let mut random = |bound: u64| noise() % bound;
                start.wait();
                while !is_over.load(Ordering::Relaxed) {
                    let row = random(ROWS as u64) as usize;
                    let mut known = there[me][row].lock().unwrap();
                    if random(3) == 0 {
                        if session.store.move_out(&session.worker, rows[me][row]).unwrap() {
                            *known = None;
                        }
                    } else if let MovedIn::In(in_pod) = session.move_in(rows[me][row]) {
                        *known = Some(in_pod);
                    }
                    drop(known);
                    pod.hosts[me].all.advance_horizon();
                    pod.members[me].tidy(&session.worker);
                    pod.send_home();
                    session.worker.collect();
                    // What the home sees of its own rows by scans is what it sees by their ids.
                    let view = session.worker.snapshot_now();
                    let scanned = scan(&session.store, &view);
                    for row in &rows[me] {
                        let read = session.store.read(&view, *row).map(|found| row_of(&session.store, found));
                        assert_eq!(scanned.get(row).copied(), read);
                    }
                    drop(view);
                    std::thread::yield_now();
                }
            });
        }
        let ended: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    assert_eq!(committed.load(Ordering::Relaxed), 2 * transfers);
    let sum: i64 =
        pod.hosts.iter().flat_map(|host| host.session().scan_now().into_values()).map(|(_, value)| value).sum();
    assert_eq!(sum, 2 * 100 * ROWS as i64);
    assert!(pod.members.iter().all(|member| member.counters.moved_out.load(Ordering::Relaxed) > 0));
    for (host, rows) in pod.hosts.iter().zip(&rows) {
        let session = host.session();
        for row in rows {
            for host in &pod.hosts {
                host.all.advance_horizon();
            }
            assert!(session.store.move_out(&session.worker, *row).unwrap(), "nobody needs it in the pod");
        }
    }
    for _ in 0..3 {
        for (host, member) in pod.hosts.iter().zip(&pod.members) {
            host.all.advance_horizon();
            member.tidy(&host.session().worker);
        }
        pod.send_home();
    }
    for member in &pod.members {
        assert_eq!(member.free_blocks(), LAYOUT.blocks as usize, "every block came home once");
    }
    pod.check_empty();
}

impl Session {
    fn scan_now(&self) -> BTreeMap<RowId, (i64, i64)> {
        scan(&self.store, &self.worker.snapshot_now())
    }
}
