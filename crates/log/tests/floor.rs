//! Records above the floor: they may build upon others that a crash lost, so they are no records after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::CommitTs;
use tidepool_log::files::{OpenHow, SimulatedFiles};
use tidepool_log::{Appender, DatabaseIdentity, FileDevice, Log, LogConfig, RecordKind, Recovery};

struct Disk(Arc<SimulatedFiles>);

impl Disk {
    fn recovery(&self) -> Recovery {
        let device = FileDevice::open(self.0.clone(), "/log".as_ref(), 64 << 10, OpenHow::default()).unwrap();
        Log::open(Arc::new(device), LogConfig::new(DatabaseIdentity([1; 16]))).unwrap()
    }

    fn log(&self, floor: &Arc<AtomicU64>) -> Arc<Log> {
        let floor = floor.clone();
        self.recovery().into_log(Box::new(move || CommitTs(floor.load(Ordering::Acquire)))).unwrap()
    }

    fn records(&self) -> Vec<u64> {
        let (mut recovery, mut found) = (self.recovery(), Vec::new());
        while let Some(record) = recovery.next_record().unwrap() {
            found.push(record.ts.0);
        }
        found
    }
}

fn append(appender: &mut Appender, ts: u64) {
    appender.reserve(1, &|| Ok(())).unwrap();
    appender.append(CommitTs(ts), RecordKind(1), b"x");
}

#[test]
fn what_is_above_the_floor_at_a_crash_is_gone_for_good() {
    let disk = Disk(Arc::new(SimulatedFiles::new(1)));
    let floor = Arc::new(AtomicU64::new(0));
    let log = disk.log(&floor);
    let mut appender = log.appender().unwrap();
    append(&mut appender, 10);
    // The commit of 15 is decided, and its record was not appended yet.
    append(&mut appender, 20);
    floor.store(14, Ordering::Release);
    log.flush().unwrap();
    assert_eq!(log.durable(), CommitTs(14));
    assert_eq!(disk.records(), [10]);
    drop((appender, log));

    // Another life, whose floor is higher, does not bring it back.
    let log = disk.log(&floor);
    let mut appender = log.appender().unwrap();
    append(&mut appender, 30);
    floor.store(30, Ordering::Release);
    log.wait_durable(CommitTs(30), || Ok(())).unwrap();
    assert_eq!(disk.records(), [10, 30]);
}

#[test]
fn a_floor_that_rises_later_is_written_when_somebody_waits_for_it() {
    let disk = Disk(Arc::new(SimulatedFiles::new(2)));
    let floor = Arc::new(AtomicU64::new(5));
    let log = disk.log(&floor);
    let mut appender = log.appender().unwrap();
    append(&mut appender, 20);
    log.flush().unwrap();
    assert_eq!((log.durable(), disk.records()), (CommitTs(5), vec![]));
    floor.store(25, Ordering::Release);
    log.wait_durable(CommitTs(20), || Ok(())).unwrap();
    assert_eq!((log.durable(), disk.records()), (CommitTs(25), vec![20]));
    // Now it takes no block: nothing was written above what is known.
    floor.store(26, Ordering::Release);
    log.flush().unwrap();
    assert_eq!((log.durable(), disk.records()), (CommitTs(26), vec![20]));
}
