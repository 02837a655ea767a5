//! Tablespaces over several locations: stripes that are dealt to devices by weight.
//!
//! Each stripe of the window is mapped of one slot of one device. The order in which devices follow each other is that of
//! [`layout::interleaved`], so that whatever is allocated spreads. A stripe in which somebody owns a page stays where it
//! is, a free one can be mapped at other addresses. So after each change free stripes are *settled*: moved to the lowest
//! addresses that there are, and dealt anew. That keeps room in long runs, and spreads what comes next; what is there
//! already is spread as it was when it came.
//!
//! Stripes move one by one, so that at most two are missing from what can be taken.

use crate::layout;
use crate::shape::{
    Growth, Kind, Part, Reshape, Shape, Shrinking, Step, back_to, clear, stripes_max, too_many_locations,
    too_many_stripes,
};
use crate::{Tablespace, TablespaceConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{DEVICES_MAX, Location, PAGE_BYTES, Place, Profile, Stripe};

impl Tablespace {
    fn pages_of_stripe(&self, stripe: usize) -> Range<usize> {
        let pages = self.window.stripe_bytes() / PAGE_BYTES;
        stripe * pages..(stripe + 1) * pages
    }

    /// Maps all slots of a tablespace that is being opened.
    pub(crate) fn lay_all(&self, shape: &mut Shape) -> Result<()> {
        let counts: Vec<usize> = shape.parts.iter().map(|part| part.idle.len()).collect();
        for (stripe, part) in layout::interleaved(&counts).into_iter().enumerate() {
            let Some(slot) = shape.parts[part].idle.pop() else { break };
            self.map_stripe(stripe, Place { device: shape.parts[part].device, slot })?;
            self.open_stripe(shape, stripe);
        }
        match shape.parts.iter().find(|part| self.has_header(part) && self.header_of(part).is_none()) {
            Some(part) => Err(Error::internal(format!("the header of {} is not there", part.stripe.location))),
            None => Ok(()),
        }
    }

    fn has_header(&self, part: &Part) -> bool {
        self.window.device(part.device).is_some_and(|device| device.persists())
    }

    /// Maps a slot at a stripe that is closed and empty.
    fn map_stripe(&self, stripe: usize, place: Place) -> Result<()> {
        // SAFETY: nobody owns a page of a stripe that is closed and empty, and an idle slot is mapped nowhere else.
        unsafe { self.window.map(stripe, place, 0..self.window.stripe_bytes()) }
    }

    /// Opens a stripe that was just mapped; the first page of a device that persists is taken for its header.
    fn open_stripe(&self, shape: &mut Shape, stripe: usize) {
        let pages = self.pages_of_stripe(stripe);
        let header = self.window.place(stripe).filter(|place| place.slot == 0);
        let slots = header.map_or(0, |place| self.slots(shape, place.device));
        self.open_pages(pages.clone());
        let part = header.and_then(|place| shape.parts.iter_mut().find(|part| part.device == place.device));
        if let Some(part) = part
            && let Err(error) =
                self.take_header_of(part, pages.start, slots * self.window.stripe_bytes(), Kind::Striped)
        {
            tracing::warn!(tablespace = self.name(), %error, "a device's header was not written");
        }
    }

    /// How many slots a device has, mapped or not.
    fn slots(&self, shape: &Shape, device: u16) -> usize {
        let mapped = self.window.places().into_iter().flatten().filter(|place| place.device == device).count();
        let idle = shape.parts.iter().find(|part| part.device == device).map_or(0, |part| part.idle.len());
        mapped + idle
    }

    /// Takes a closed stripe in which nobody owns a page out of the address space. Its slot.
    fn take_out(&self, stripe: usize) -> Option<Place> {
        let place = self.window.place(stripe)?;
        if !self.give_up(self.pages_of_stripe(stripe))
            && let Some(device) = self.window.device(place.device)
        {
            device.note_not_zeroed();
        }
        // SAFETY: closed, and nobody owns a page of it.
        unsafe { self.unmap(stripe, 0) };
        Some(place)
    }

    fn put_idle(shape: &mut Shape, place: Place) {
        if let Some(part) = shape.parts.iter_mut().find(|part| part.device == place.device) {
            let at = part.idle.partition_point(|slot| *slot > place.slot);
            part.idle.insert(at, place.slot);
        }
    }

    /// Deals free stripes anew, to the lowest addresses that are not taken. What is taken meanwhile stays where it is.
    fn settle(&self, shape: &mut Shape) {
        let places = self.window.places();
        let index_of: BTreeMap<u16, usize> =
            shape.parts.iter().enumerate().map(|(index, part)| (part.device, index)).collect();
        let is_free = |stripe: usize| self.is_free_and_open(self.pages_of_stripe(stripe));
        let free: BTreeSet<usize> =
            (0..places.len()).filter(|stripe| places[*stripe].is_some() && is_free(*stripe)).collect();
        let mut counts: Vec<usize> = shape.parts.iter().map(|part| part.idle.len()).collect();
        for stripe in &free {
            if let Some(index) = places[*stripe].and_then(|place| index_of.get(&place.device)) {
                counts[*index] += 1;
            }
        }
        let lowest = (0..).filter(|stripe| free.contains(stripe) || places.get(*stripe).copied().flatten().is_none());
        let wanted: BTreeMap<usize, usize> = lowest.zip(layout::interleaved(&counts)).collect();

        // Free stripes that are not of the part that is wanted there, by part.
        let mut misplaced: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); shape.parts.len()];
        for stripe in &free {
            let index = places[*stripe].and_then(|place| index_of.get(&place.device)).copied();
            if let Some(index) = index
                && wanted.get(stripe) != Some(&index)
            {
                misplaced[index].insert(*stripe);
            }
        }
        let mut empty: BTreeSet<usize> =
            wanted.keys().copied().filter(|stripe| places.get(*stripe).copied().flatten().is_none()).collect();
        loop {
            let Some(stripe) = empty.pop_first() else {
                // All addresses are taken, by stripes that want each other's: one of them makes room for a round.
                let Some(from) = misplaced.iter_mut().find_map(BTreeSet::pop_first) else { break };
                if self.close_if_free(self.pages_of_stripe(from))
                    && let Some(place) = self.take_out(from)
                {
                    Self::put_idle(shape, place);
                    empty.extend(wanted.contains_key(&from).then_some(from));
                }
                continue;
            };
            let index = wanted[&stripe];
            let mut place = shape.parts[index].idle.pop().map(|slot| Place { device: shape.parts[index].device, slot });
            while place.is_none()
                && let Some(from) = misplaced[index].pop_last()
            {
                if self.close_if_free(self.pages_of_stripe(from)) {
                    place = self.take_out(from);
                    empty.extend(wanted.contains_key(&from).then_some(from));
                }
            }
            let Some(place) = place else { continue };
            if !self.lay(shape, stripe, place) {
                break;
            }
        }
        // Of what could not be laid as wanted because somebody took what was free.
        for index in 0..shape.parts.len() {
            while let Some(slot) = shape.parts[index].idle.pop() {
                let hole = (0..).find(|stripe| self.window.place(*stripe).is_none());
                let place = Place { device: shape.parts[index].device, slot };
                if !hole.is_some_and(|stripe| self.lay(shape, stripe, place)) {
                    return;
                }
            }
        }
    }

    /// Maps and opens a slot. When that fails it is idle, and the tablespace that much smaller.
    fn lay(&self, shape: &mut Shape, stripe: usize, place: Place) -> bool {
        match self.map_stripe(stripe, place) {
            Ok(()) => {
                self.open_stripe(shape, stripe);
                true
            }
            Err(error) => {
                tracing::error!(tablespace = self.name(), %error, "a stripe was not mapped, and is missing until a restart");
                Self::put_idle(shape, place);
                false
            }
        }
    }

    /// What is at the end no more.
    fn cut_end(&self) {
        self.cut(self.window.places().len() * self.window.stripe_bytes() / PAGE_BYTES);
    }

    pub(crate) fn resize_striped<'a>(&'a self, shape: MutexGuard<'a, Shape>, size_bytes: u64) -> Result<Reshape<'a>> {
        let stripe_bytes = self.window.stripe_bytes();
        let total = size_bytes.div_ceil(stripe_bytes as u64);
        self.check_addresses(total * stripe_bytes as u64)?;
        let total = total as usize;
        if total > stripes_max() {
            return Err(too_many_stripes(self.name(), stripe_bytes));
        }
        let counts = layout::counts(&shape.weights(), total);
        if counts.contains(&0) {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("tablespace \"{}\" has too many locations for that size", self.name()),
            ));
        }
        let now: Vec<usize> = shape.parts.iter().map(|part| self.slots(&shape, part.device)).collect();
        let shrinks = total < now.iter().sum();
        // A part that rounding would have go the other way stays as it is.
        let after = now.iter().zip(&counts).map(|(now, count)| if shrinks { now.min(count) } else { now.max(count) });
        let size = (after.sum::<usize>() * stripe_bytes) as u64;
        let config = TablespaceConfig { size_bytes: Some(size), ..(*self.config()).clone() };
        if shrinks {
            self.check_fits(size, 0)?;
            let remove = now.iter().zip(&counts).map(|(now, count)| now.saturating_sub(*count)).collect::<Vec<_>>();
            return Ok(self.shrink(shape, config, &remove, None));
        }
        let more: Vec<usize> = counts.iter().zip(&now).map(|(count, now)| count.saturating_sub(*now)).collect();
        let mut growth = Growth { fresh: Vec::new(), filled: 0..0, before: Vec::new(), part: None };
        let grown = self.grow(&shape, &more, &mut growth);
        let mut reshape = Reshape { space: self, shape, config, step: Step::Grow(Box::new(growth)) };
        // Dropped on an error, which undoes what was done.
        grown?;
        if more.iter().all(|more| *more == 0) {
            reshape.step = Step::Done;
        }
        Ok(reshape)
    }

    /// Enlarges devices and maps what they have more where nothing is, closed.
    fn grow(&self, shape: &Shape, more: &[usize], growth: &mut Growth) -> Result<()> {
        let stripe_bytes = self.window.stripe_bytes();
        let mut places = Vec::new();
        for (part, more) in shape.parts.iter().zip(more).filter(|(_, more)| **more > 0) {
            let device = self.device_of(part)?;
            let mapped: BTreeSet<u32> = self.slots_mapped(part.device);
            let unused: Vec<u32> = (0..).filter(|slot| !mapped.contains(slot)).take(*more).collect();
            let len = unused.last().map_or(0, |slot| (*slot as usize + 1) * stripe_bytes);
            if len > device.len() {
                growth.before.push((part.device, device.len()));
                device.resize(len).inspect_err(|_| {
                    growth.before.pop();
                })?;
            }
            places.extend(unused.into_iter().map(|slot| Place { device: part.device, slot }));
        }
        self.map_fresh(places, growth)
    }

    fn slots_mapped(&self, device: u16) -> BTreeSet<u32> {
        self.window
            .places()
            .into_iter()
            .flatten()
            .filter(|place| place.device == device)
            .map(|place| place.slot)
            .collect()
    }

    fn map_fresh(&self, places: Vec<Place>, growth: &mut Growth) -> Result<()> {
        let taken = self.window.places();
        let holes = (0..).filter(|stripe| taken.get(*stripe).copied().flatten().is_none());
        for (place, stripe) in places.into_iter().zip(holes) {
            self.map_stripe(stripe, place)?;
            growth.fresh.push(stripe);
        }
        Ok(())
    }

    /// Closes stripes until `remove` of each part are; takes those that are free out.
    fn shrink<'a>(
        &'a self,
        mut shape: MutexGuard<'a, Shape>,
        config: TablespaceConfig,
        remove: &[usize],
        part: Option<usize>,
    ) -> Reshape<'a> {
        self.is_shrinking.store(true, Ordering::Release);
        let mut shrinking = Shrinking { closed: Vec::new(), unmapped: Vec::new(), part };
        let places = self.window.places();
        for (index, remove) in remove.iter().enumerate() {
            let device = shape.parts[index].device;
            let mut left = *remove;
            while left > 0
                && let Some(slot) = shape.parts[index].idle.pop()
            {
                shrinking.unmapped.push(Place { device, slot });
                left -= 1;
            }
            let own = |stripe: &usize| places[*stripe].is_some_and(|place| place.device == device);
            let mut kept = Vec::new();
            for stripe in (0..places.len()).rev().filter(own) {
                if left > 0 && self.close_if_free(self.pages_of_stripe(stripe)) {
                    shrinking.unmapped.extend(self.take_out(stripe));
                    left -= 1;
                } else {
                    kept.push(stripe);
                }
            }
            // From the top, and never the one with the header of a device that stays.
            let header = places.iter().position(|place| *place == Some(Place { device, slot: 0 }));
            let stays = |stripe: &usize| {
                part != Some(index) && self.header_of(&shape.parts[index]).is_some() && Some(*stripe) == header
            };
            for stripe in kept.into_iter().filter(|stripe| !stays(stripe)).take(left) {
                self.close_pages(self.pages_of_stripe(stripe));
                shrinking.closed.push(stripe);
            }
        }
        // So that what must move finds room in long runs.
        self.settle(&mut shape);
        Reshape { space: self, shape, config, step: Step::Shrink(Box::new(shrinking)) }
    }

    pub(crate) fn add_striped<'a>(
        &'a self,
        shape: MutexGuard<'a, Shape>,
        stripe: Stripe,
        profile: Option<Profile>,
    ) -> Result<Reshape<'a>> {
        if shape.parts.len() == DEVICES_MAX {
            return Err(too_many_locations());
        }
        if let Location::Paged { .. } | Location::Node { .. } | Location::Striped(_) = stripe.location {
            return Err(Error::unsupported(format!("\"{}\" cannot be one of several locations", stripe.location)));
        }
        let stripe_bytes = self.window.stripe_bytes();
        let now = if shape.kind == Kind::Striped {
            shape.parts.iter().map(|part| self.slots(&shape, part.device)).sum()
        } else {
            shape.len.div_ceil(stripe_bytes)
        };
        let weights: u32 = shape.weights().iter().sum();
        let more = (now * stripe.weight as usize).div_ceil(weights as usize);
        self.check_addresses(((now + more) * stripe_bytes) as u64)?;
        if now + more > stripes_max() {
            return Err(too_many_stripes(self.name(), stripe_bytes));
        }
        let (device, mut part) = self.new_part(stripe, profile, (more * stripe_bytes) as u64)?;
        part.device = self.window.add(device).map_err(|device| {
            device.undo_open();
            too_many_locations()
        })?;
        let config = self.config_of(shape.parts.iter().chain([&part]), ((now + more) * stripe_bytes) as u64);
        let places = (0..more as u32).map(|slot| Place { device: part.device, slot }).collect();
        let mut growth = Growth { fresh: Vec::new(), filled: 0..0, before: Vec::new(), part: Some(part) };
        let prepared = config.and_then(|config| {
            if shape.kind != Kind::Striped {
                growth.filled = self.fill_last_stripe(&shape)?;
            }
            self.map_fresh(places, &mut growth)?;
            Ok(config)
        });
        let now = (*self.config()).clone();
        let mut reshape = Reshape { space: self, shape, config: now, step: Step::Grow(Box::new(growth)) };
        // Dropped on an error, which undoes what was done.
        reshape.config = prepared?;
        Ok(reshape)
    }

    pub(crate) fn drop_striped<'a>(&'a self, shape: MutexGuard<'a, Shape>, location: &Location) -> Result<Reshape<'a>> {
        // Of equal ones the latest.
        let Some(part) = shape.parts.iter().rposition(|part| part.stripe.location == *location) else {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("tablespace \"{}\" has no location \"{location}\"", self.name()),
            )
            .with_detail(format!("It has {}.", self.config().location)));
        };
        if shape.parts.len() == 1 {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("tablespace \"{}\" has no other location", self.name()),
            )
            .with_hint("Add another first, or drop the tablespace."));
        }
        let slots: Vec<usize> = shape.parts.iter().map(|part| self.slots(&shape, part.device)).collect();
        let left = slots.iter().enumerate().filter(|(index, _)| *index != part).map(|(_, slots)| slots).sum::<usize>();
        let size = (left * self.window.stripe_bytes()) as u64;
        let header = if self.header_of(&shape.parts[part]).is_some() { PAGE_BYTES as u64 } else { 0 };
        self.check_fits(size, header)?;
        let rest = shape.parts.iter().enumerate().filter(|(index, _)| *index != part).map(|(_, part)| part);
        let config = self.config_of(rest, size)?;
        let remove: Vec<usize> =
            slots.iter().enumerate().map(|(index, slots)| if index == part { *slots } else { 0 }).collect();
        Ok(self.shrink(shape, config, &remove, Some(part)))
    }
}

impl Reshape<'_> {
    pub(crate) fn left_in_stripes(&self, shrinking: &Shrinking) -> u64 {
        let space = self.space;
        let used: u64 = shrinking.closed.iter().map(|stripe| space.used_bytes_in(space.pages_of_stripe(*stripe))).sum();
        // The header of a device that goes stays to the end.
        let header = shrinking.part.and_then(|part| space.header_of(&self.shape.parts[part]));
        used - if header.is_some() { PAGE_BYTES as u64 } else { 0 }
    }

    pub(crate) fn finish_growth(&mut self, growth: Growth) -> Result<()> {
        let space = self.space;
        if !growth.filled.is_empty() {
            space.open_pages(growth.filled.start / PAGE_BYTES..growth.filled.end / PAGE_BYTES);
        }
        if let Some(part) = growth.part {
            self.shape.kind = Kind::Striped;
            self.shape.parts.push(part);
        }
        for stripe in growth.fresh {
            space.open_stripe(&mut self.shape, stripe);
        }
        space.settle(&mut self.shape);
        self.note_devices();
        space.set_cost_model(self.shape.cost_model()?);
        Ok(())
    }

    pub(crate) fn undo_growth(&mut self, growth: Growth) {
        let space = self.space;
        for stripe in growth.fresh {
            // SAFETY: mapped by the preparation, and never opened.
            unsafe { space.unmap(stripe, 0) };
        }
        space.empty_last_stripe(&self.shape, &growth.filled);
        for (device, len) in growth.before {
            if let Some(device) = space.window.device(device) {
                back_to(&device, len);
            }
        }
        if let Some(part) = growth.part
            && let Some(device) = space.window.remove(part.device)
        {
            device.undo_open();
        }
    }

    pub(crate) fn finish_shrinking(&mut self, shrinking: Shrinking) {
        let space = self.space;
        if let Some(page) = shrinking.part.and_then(|part| space.header_of(&self.shape.parts[part])) {
            space.give_header_back(page);
        }
        for stripe in shrinking.closed {
            space.take_out(stripe);
        }
        space.is_shrinking.store(false, Ordering::Release);
        if let Some(part) = shrinking.part {
            let part = self.shape.parts.remove(part);
            if let Some(device) = space.window.remove(part.device) {
                clear(&device, space.name());
            }
        }
        space.settle(&mut self.shape);
        space.cut_end();
        self.note_devices();
        match self.shape.cost_model() {
            Ok(model) => space.set_cost_model(model),
            Err(error) => tracing::error!(tablespace = space.name(), %error, "pacing goes on as before"),
        }
    }

    pub(crate) fn undo_shrinking(&mut self, shrinking: Shrinking) {
        let space = self.space;
        space.is_shrinking.store(false, Ordering::Release);
        for stripe in shrinking.closed {
            space.open_pages(space.pages_of_stripe(stripe));
        }
        for place in shrinking.unmapped {
            Tablespace::put_idle(&mut self.shape, place);
        }
        space.settle(&mut self.shape);
    }

    /// Writes headers and cuts devices to what is in use of them.
    fn note_devices(&mut self) {
        let space = self.space;
        let stripe_bytes = space.window.stripe_bytes();
        for index in 0..self.shape.parts.len() {
            let number = self.shape.parts[index].device;
            let idle = self.shape.parts[index].idle.iter().copied();
            let last = space.slots_mapped(number).into_iter().chain(idle).max();
            let len = last.map_or(0, |slot| (slot as usize + 1) * stripe_bytes);
            space.note_superblock(&mut self.shape.parts[index], len, Kind::Striped);
            if let Some(device) = space.window.device(number)
                && len > 0
                && len < device.len()
            {
                back_to(&device, len);
            }
        }
    }
}
