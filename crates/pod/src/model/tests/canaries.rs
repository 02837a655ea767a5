//! Programs that break the discipline on purpose: the model must notice each.

use super::super::{Host, Plan, Program, Step, run};
use crate::access::{Access, Fence, Line, Lines, Note, Part, WordAt};
use crate::layout::{HostId, Layout};
use tidepool_device::LINE_BYTES;

const LAYOUT: Layout = Layout { hosts: 2, workers: 1, tuples: 4, ring_lines: 4, block_lines: 1, blocks: 1 };

fn line() -> Line {
    LAYOUT.blocks(HostId(0)).first
}

fn word() -> WordAt {
    LAYOUT.tuple(0).at()
}

fn fault(one: fn(&Host<'_>) -> Step<()>, two: fn(&Host<'_>) -> Step<()>) -> Option<String> {
    let programs = || -> Vec<Program> { vec![Box::new(one), Box::new(two)] };
    (1..=20).find_map(|seed| run(Plan { steps_max: 2000, ..Plan::new(seed) }, LAYOUT, programs()).fault)
}

fn nothing(_host: &Host<'_>) -> Step<()> {
    Ok(())
}

/// Writes a line as it should be, and says so.
fn write(host: &Host<'_>) -> Step<()> {
    let lines = Lines { first: line(), count: 1 };
    host.fill(line(), &[7; LINE_BYTES])?;
    host.write_back(lines)?;
    host.fence(Fence::WrittenBack)?;
    host.note(Note::Sealed(lines));
    let _ = host.swap(word(), 0, 1)?;
    Ok(())
}

/// Fetches the line before it was written, and once more when that was said.
fn read_twice(host: &Host<'_>, discards: bool) -> Step<()> {
    let mut bytes = [0; LINE_BYTES];
    host.fetch(line(), &mut bytes)?;
    while host.load(word())? == 0 {
        host.pause()?;
    }
    if discards {
        host.fence(Fence::BeforeDiscard)?;
        host.discard(Lines { first: line(), count: 1 }, Part::Head)?;
        host.fence(Fence::Discarded(Part::Head))?;
    }
    host.fetch(line(), &mut bytes)?;
    host.hold(!discards || bytes == [7; LINE_BYTES], || "old bytes were read".to_owned());
    Ok(())
}

#[test]
fn a_line_that_is_not_fetched_anew_is_found() {
    assert_eq!(fault(write, |host| read_twice(host, true)), None);
    assert!(fault(write, |host| read_twice(host, false)).unwrap().contains("has sealed version 1 before"));
}

#[test]
fn a_store_to_a_line_of_another_host_is_found() {
    let fault = fault(nothing, |host| Ok(host.fill(line(), &[1; LINE_BYTES])?));
    assert!(fault.unwrap().contains("which is host 0's"));
}

#[test]
fn a_reference_that_outlives_its_generation_is_found() {
    let fault = fault(nothing, |host| {
        let (at, bits) = (word(), 1);
        host.note(Note::Publishes { at, bits, bytes: &[1; 24] });
        host.note(Note::Accepts { at, bits, bytes: &[2; 24] });
        Ok(host.order()?)
    });
    assert!(fault.unwrap().contains("takes"));
}

#[test]
fn hosts_that_wait_for_ever_are_found() {
    let fault = fault(nothing, |host| {
        while host.load(word())? == 0 {
            host.pause()?;
        }
        Ok(())
    });
    assert!(fault.unwrap().contains("do not come to an end"));
}
