use super::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Task<'f, T> = Box<dyn FnOnce() -> T + 'f>;

#[test]
fn a_pause_lets_the_next_go_on() {
    let order = RefCell::new(Vec::new());
    let order = &order;
    let tasks = (0..3).map(|task| -> Task<'_, i32> {
        Box::new(move || {
            for step in 0..3 {
                order.borrow_mut().push((step, task));
                let _pausing = pausing();
                pause();
            }
            task
        })
    });
    let finished = run(tasks).unwrap();
    assert_eq!(finished.values, [0, 1, 2]);
    assert_eq!(finished.waits.pauses, 9);
    let expected: Vec<_> = (0..3).flat_map(|step| (0..3).map(move |task| (step, task))).collect();
    assert_eq!(*order.borrow(), expected);
}

#[test]
fn whoever_has_not_said_that_it_may_goes_on_through_pauses() {
    let running = Cell::new(0);
    let running = &running;
    let tasks = (0..2).map(|_| -> Task<'_, ()> {
        Box::new(move || {
            running.set(running.get() + 1);
            pause();
            pause_for(1_000_000_000);
            assert_eq!(running.get(), 1);
            running.set(running.get() - 1);
        })
    });
    assert_eq!(run(tasks).unwrap().waits, Waits::default());
    // Nor does anything happen where there is no fiber.
    let _pausing = pausing();
    pause();
    pause_for(1_000_000_000);
    assert!(!may_pause() && !is_fiber());
}

#[test]
fn waits_run_beneath_each_other() {
    const WAIT_NS: u64 = 2_000_000;
    let wait = || -> Task<'_, u128> {
        Box::new(|| {
            let start = Instant::now();
            let _pausing = pausing();
            (0..5).for_each(|_| pause_for(WAIT_NS));
            start.elapsed().as_nanos()
        })
    };
    let start = Instant::now();
    let finished = run((0..8).map(|_| wait())).unwrap();
    let whole = start.elapsed().as_nanos();
    assert!(finished.values.iter().all(|each| *each >= u128::from(5 * WAIT_NS)));
    assert_eq!((finished.waits.pauses, finished.waits.asked_ns), (40, 40 * WAIT_NS));
    // Of 40 waits one after the other, at least those of seven fibers ran beneath another's, or nothing was gained.
    assert!(u128::from(finished.waits.idle_ns) <= whole);
    assert!(finished.waits.idle_ns < finished.waits.asked_ns / 2, "{:?}", finished.waits);
}

#[test]
fn what_another_fiber_does_can_be_waited_for() {
    let turn = Cell::new(0);
    let turn = &turn;
    let tasks = [2, 1, 0].map(|task| -> Task<'_, u32> {
        Box::new(move || {
            wait_until(|| turn.get() == task);
            turn.set(task + 1);
            task
        })
    });
    assert_eq!(run(tasks).unwrap().values, [2, 1, 0]);
    assert_eq!(turn.get(), 3);
}

#[test]
fn what_another_thread_does_can_be_waited_for() {
    let flag = std::sync::atomic::AtomicBool::new(false);
    let flag = &flag;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            flag.store(true, std::sync::atomic::Ordering::Release);
        });
        let wait = || -> Task<'_, ()> { Box::new(|| wait_until(|| flag.load(std::sync::atomic::Ordering::Acquire))) };
        run([wait(), wait()]).unwrap();
    });
}

#[test]
fn a_panic_unwinds_the_others_and_is_passed_on() {
    struct Counting<'c>(&'c Cell<u32>);
    impl Drop for Counting<'_> {
        fn drop(&mut self) {
            // Another that waits here is not waited for.
            let _pausing = pausing();
            pause();
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Cell::new(0);
    let dropped = &dropped;
    let tasks = (0..4).map(|task| -> Task<'_, ()> {
        Box::new(move || {
            let _counting = Counting(dropped);
            let _pausing = pausing();
            pause();
            assert!(task != 2, "the third fails");
            pause();
        })
    });
    let failed = catch_unwind(AssertUnwindSafe(|| run(tasks).map(|_| ())));
    let message = *failed.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "the third fails");
    assert_eq!(dropped.get(), 4);
    assert!(!is_fiber() && !may_pause());
    // The thread can have fibers again.
    assert_eq!(run([Box::new(|| 7) as Task<'_, i32>]).unwrap().values, [7]);
}

#[test]
fn fibers_within_a_fiber_run_one_after_the_other() {
    let inner = || -> Task<'_, usize> {
        Box::new(|| {
            let tasks = (0..3usize).map(|task| -> Task<'_, usize> { Box::new(move || task) });
            run(tasks).unwrap().values.into_iter().sum()
        })
    };
    assert_eq!(run([inner(), inner()]).unwrap().values, [3, 3]);
}

#[test]
fn no_task_is_no_fiber() {
    assert!(run(std::iter::empty::<Task<'_, ()>>()).unwrap().values.is_empty());
}
