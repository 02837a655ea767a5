//! Those who are told of what is durable instead of waiting for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidepool_base::{CommitTs, SqlState};
use tidepool_log::files::{OpenHow, SimulatedFiles};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, RecordKind};

fn log(files: &Arc<SimulatedFiles>, floor: &Arc<AtomicU64>) -> Arc<Log> {
    let device = FileDevice::open(files.clone(), "/log".as_ref(), 64 << 10, OpenHow::default()).unwrap();
    let recovery = Log::open(Arc::new(device), LogConfig::new(DatabaseIdentity([1; 16]))).unwrap();
    let floor = floor.clone();
    recovery.into_log(Box::new(move || CommitTs(floor.load(Ordering::Acquire)))).unwrap()
}

#[test]
fn callers_are_told_once_it_is_durable_and_when_it_never_will_be() {
    let (files, floor) = (Arc::new(SimulatedFiles::new(3)), Arc::new(AtomicU64::new(0)));
    let log = log(&files, &floor);
    let serving = {
        let log = log.clone();
        std::thread::spawn(move || log.serve_callers())
    };
    let mut appender = log.appender().unwrap();
    let (tell, told) = mpsc::channel();
    for ts in [10, 20, 30] {
        appender.reserve(1, &|| Ok(())).unwrap();
        appender.append(CommitTs(ts), RecordKind(1), b"x");
        floor.store(ts, Ordering::Release);
        let (tell, of) = (tell.clone(), log.clone());
        log.when_durable(
            CommitTs(ts),
            Box::new(move |outcome| {
                tell.send((ts, outcome.is_ok(), of.durable() >= CommitTs(ts))).unwrap();
            }),
        );
    }
    let mut all: Vec<_> = (0..3).map(|_| told.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [(10, true, true), (20, true, true), (30, true, true)]);
    // What is durable is told at once, whether or not anybody serves.
    log.stop_serving();
    serving.join().unwrap();
    let tell_at_once = tell.clone();
    log.when_durable(CommitTs(20), Box::new(move |outcome| tell_at_once.send((20, outcome.is_ok(), true)).unwrap()));
    assert_eq!(told.try_recv().unwrap(), (20, true, true));
    log.when_durable(
        CommitTs(40),
        Box::new(move |outcome| {
            let code = outcome.unwrap_err().code();
            tell.send((40, code == SqlState::ADMIN_SHUTDOWN, false)).unwrap();
        }),
    );
    assert_eq!(told.try_recv().unwrap(), (40, true, false));
}
