//! The threads that write the log out.

use crate::background::Background;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{Error, Result, without_unwinding};
use tidepool_log::Log;

/// How often commits that did not wait are written out (PostgreSQL's `wal_writer_delay`).
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that writes out commits that nobody waits for, and prepares segments; and the one that writes out for those who
/// wait without sleeping.
pub(crate) struct LogWriter {
    shared: Arc<(Mutex<bool>, Condvar)>,
    log: Arc<Log>,
    threads: Vec<JoinHandle<()>>,
}

impl LogWriter {
    pub fn start(of: &Arc<Log>, background: Arc<Background>) -> Result<LogWriter> {
        let shared: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        #[cfg(test)]
        if crate::stress::is_stepwise() {
            return Ok(LogWriter { shared, log: of.clone(), threads: Vec::new() });
        }
        let of_thread = shared.clone();
        let log = of.clone();
        let run = move || {
            let (stopped, changed) = &*of_thread;
            let mut stopped = stopped.lock();
            let mut failing = false;
            while !*stopped {
                changed.wait_for(&mut stopped, FLUSH_INTERVAL);
                if *stopped {
                    return;
                }
                parking_lot::MutexGuard::unlocked(&mut stopped, || {
                    // The log says so itself when it fails.
                    let _ = log.flush();
                    match if log.used_bytes() > 0 { log.prepare() } else { Ok(()) } {
                        Ok(()) => failing = false,
                        Err(error) => {
                            if !std::mem::replace(&mut failing, true) {
                                tracing::warn!("the log cannot grow: {error}");
                            }
                        }
                    }
                    if log.wants_checkpoint() {
                        background.call();
                    }
                });
            }
        };
        let thread = std::thread::Builder::new()
            .name("log-writer".to_owned())
            // Everybody would wait for it for ever.
            .spawn(move || without_unwinding(run))
            .map_err(|error| Error::io("start the log's thread", &error))?;
        let mut writer = LogWriter { shared, log: of.clone(), threads: vec![thread] };
        let log = of.clone();
        let serving = std::thread::Builder::new()
            .name("log-sync".to_owned())
            .spawn(move || {
                // It waits for the device, and everybody for it. Where it cannot be had, it is as before.
                if let Err(error) = tidepool_device::take_short_turns() {
                    tracing::debug!("{error}");
                }
                without_unwinding(|| log.serve_callers());
            })
            .map_err(|error| Error::io("start the log's thread", &error))?;
        writer.threads.push(serving);
        Ok(writer)
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        *self.shared.0.lock() = true;
        self.shared.1.notify_all();
        self.log.stop_serving();
        for thread in self.threads.drain(..) {
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }
}
