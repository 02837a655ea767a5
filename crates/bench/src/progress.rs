//! Progress on the terminal: bars where there is one, plain lines where there is not. All of it goes to standard error, so
//! that standard output holds results only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Writes a line.
pub fn say(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}

/// One task's progress. Finishes when dropped.
pub struct Bar {
    label: String,
    unit: &'static str,
    total: u64,
    done: AtomicU64,
    start: Instant,
    /// `None` without a terminal.
    bar: Option<ProgressBar>,
    /// The quarter that was last reported as a plain line.
    quarter: AtomicU64,
}

impl Bar {
    pub fn new(label: impl Into<String>, total: u64, unit: &'static str) -> Bar {
        let label = label.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = format!("{{msg:28}} [{{bar:32}}] {{human_pos}}/{{human_len}} {unit} {{elapsed_precise}}");
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(label.clone());
            bar
        });
        if bar.is_none() {
            say(format!("{label} …"));
        }
        Bar { label, unit, total, done: AtomicU64::new(0), start: Instant::now(), bar, quarter: AtomicU64::new(0) }
    }

    pub fn message(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    pub fn add(&self, amount: u64) {
        let done = self.done.fetch_add(amount, Ordering::Relaxed) + amount;
        match &self.bar {
            Some(bar) => bar.inc(amount),
            None if self.total > 0 => {
                let quarter = (done * 4 / self.total).min(3);
                if self.quarter.fetch_max(quarter, Ordering::Relaxed) < quarter {
                    say(format!("{} … {} %", self.label, quarter * 25));
                }
            }
            None => {}
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let done = self.done.load(Ordering::Relaxed);
        say(format!(
            "{}: {} {} in {:.1} s",
            self.label,
            thousands(done),
            self.unit,
            self.start.elapsed().as_secs_f64()
        ));
    }
}

/// `6001215` as `6,001,215`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
