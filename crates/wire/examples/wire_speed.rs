//! What a read of 64 kB costs over each transport, beside a bare loop over the same kind of connection in the same run:
//! one read at a time, and eight under way.
//!
//! `cargo run --release -p tidepool-wire --example wire_speed -- [ROUNDS]`, under `taskset -c 0` for both ends on one processor
//!
//! The bare loop sends a request of 64 bytes and receives 64 kB; it checks nothing and knows no requests. Both take
//! turns, so that the machine is the same for both.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidepool_base::Result;
use tidepool_wire::transport::Transport;
use tidepool_wire::transport::local::{Link, LocalEnd};
use tidepool_wire::{
    Admission, Connection, DirectConnection, Done, Epoch, Extent, Identity, Limits, List, Offer, Place, Request,
    Responder, Server, ServerConfig, Service, Timeouts, Token,
};

const BYTES: usize = 64 << 10;
const REQUEST_BYTES: usize = 64;
/// Reads of one turn, one at a time.
const READS: usize = 500;
/// Stretches of a turn with several reads under way, each of so many reads: so short that most of them pass without
/// another process on the same processor.
const STRETCHES: usize = 10;
const STRETCH_READS: usize = 48;
const DEPTH: usize = 8;
const LONG: Duration = Duration::from_secs(60);

struct Memory(Vec<u8>);

impl Service for Memory {
    fn admit(&self, _: &Offer) -> Result<Admission> {
        Ok(Admission::default())
    }

    fn serve(&self, _: &Offer, request: Request<'_>, responder: Responder) {
        // An error says that the peer is gone.
        let _ = match request {
            Request::Read(extents) => match extents.iter().next() {
                Some(Extent { place, bytes }) => {
                    let place = place.0 as usize;
                    responder.data(&[&self.0[place..place + bytes as usize]])
                }
                None => responder.data(&[]),
            },
            _ => responder.done(Done::default()),
        };
    }
}

/// A connection without frames.
trait Bare: Send + 'static {
    fn send(&mut self, bytes: &[u8]);
    /// False: it is over.
    fn receive(&mut self, bytes: &mut [u8]) -> bool;
}

macro_rules! bare_stream {
    ($stream:ty) => {
        impl Bare for $stream {
            fn send(&mut self, bytes: &[u8]) {
                self.write_all(bytes).expect("the other end is there");
            }

            fn receive(&mut self, bytes: &mut [u8]) -> bool {
                self.read_exact(bytes).is_ok()
            }
        }
    };
}

bare_stream!(TcpStream);
bare_stream!(UnixStream);

impl Bare for LocalEnd {
    fn send(&mut self, bytes: &[u8]) {
        self.write_all(bytes).expect("the other end is there");
    }

    fn receive(&mut self, bytes: &mut [u8]) -> bool {
        self.read_exact(bytes).is_ok()
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let near = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (far, _) = listener.accept().expect("one has connected");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("TCP has the option");
    }
    (near, far)
}

fn serve_bare(mut far: impl Bare) {
    std::thread::spawn(move || {
        let (memory, mut request) = (vec![7; BYTES], [0; REQUEST_BYTES]);
        while far.receive(&mut request) {
            far.send(&memory);
        }
    });
}

/// Nanoseconds of each read, and of each stretch of reads.
#[derive(Default)]
struct Figures {
    each: Vec<u64>,
    stretches: Vec<u64>,
}

fn median(times: &mut [u64]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0) as f64
}

impl Figures {
    /// Microseconds of a read.
    fn p50(&mut self) -> f64 {
        median(&mut self.each) / 1e3
    }

    fn gigabytes_per_second(&mut self) -> f64 {
        (STRETCH_READS * BYTES) as f64 / median(&mut self.stretches)
    }
}

/// One turn: reads one at a time, then with `DEPTH` under way.
fn turn(figures: &mut Figures, mut one: impl FnMut(), mut stretch: impl FnMut()) {
    for _ in 0..READS {
        let start = Instant::now();
        one();
        figures.each.push(start.elapsed().as_nanos() as u64);
    }
    for _ in 0..STRETCHES {
        let start = Instant::now();
        stretch();
        figures.stretches.push(start.elapsed().as_nanos() as u64);
    }
}

fn bare_turn(figures: &mut Figures, near: &mut impl Bare, bytes: &mut [u8]) {
    let near = std::cell::RefCell::new(near);
    let bytes = std::cell::RefCell::new(bytes);
    let receive = || black_box(near.borrow_mut().receive(&mut bytes.borrow_mut()));
    let send = || near.borrow_mut().send(&[1; REQUEST_BYTES]);
    turn(
        figures,
        || {
            send();
            receive();
        },
        || {
            (0..DEPTH).for_each(|_| send());
            for read in 0..STRETCH_READS {
                receive();
                if read + DEPTH < STRETCH_READS {
                    send();
                }
            }
        },
    );
}

const EXTENTS: [Extent; 1] = [Extent { place: Place(0), bytes: BYTES as u32 }];

fn wire_turn(figures: &mut Figures, connection: &Connection, bytes: &mut [u8]) {
    let bytes = std::cell::RefCell::new(bytes);
    let submit = || connection.submit(&Request::Read(List::new(&EXTENTS)), LONG).expect("the node is there");
    turn(
        figures,
        || connection.read_into(&EXTENTS, &mut bytes.borrow_mut()).expect("the node is there"),
        || {
            let mut pending: VecDeque<_> = (0..DEPTH).map(|_| submit()).collect();
            for read in 0..STRETCH_READS {
                if let Some(first) = pending.pop_front() {
                    first.wait_into(&mut bytes.borrow_mut()).expect("the node is there");
                }
                if read + DEPTH < STRETCH_READS {
                    pending.push_back(submit());
                }
            }
        },
    );
}

fn direct_turn(figures: &mut Figures, reader: &mut DirectConnection, bytes: &mut [u8]) {
    for _ in 0..READS {
        let start = Instant::now();
        reader.read_into(&EXTENTS, bytes, LONG).expect("the node is there");
        figures.each.push(start.elapsed().as_nanos() as u64);
    }
}

fn measure<B: Bare + Transport>(name: &str, rounds: usize, pair: impl Fn() -> (B, B)) -> Result<()> {
    let token = Token::new(&[7; 16])?;
    let server = Server::new(Memory(vec![7; BYTES]), token.clone(), ServerConfig::default())?;
    let client = Identity::random()?;
    let offer = |lane, bare_data| Offer {
        tablespace: Identity([1; 16]),
        epoch: Epoch(1),
        client,
        lane,
        incarnation: 1,
        limits: Limits::default(),
        bare_data,
    };
    let connected = || {
        let (near, far) = pair();
        let server = server.clone();
        std::thread::spawn(move || server.serve(Box::new(far)));
        Box::new(near)
    };
    let (mut bare, far) = pair();
    serve_bare(far);
    let checked = Connection::open(connected(), &offer(0, false), &token, Timeouts::default())?;
    let agreed = Connection::open(connected(), &offer(1, true), &token, Timeouts::default())?;
    let mut direct = DirectConnection::open(connected(), &offer(2, true), &token, LONG)?;
    let mut bytes = vec![0; BYTES];
    let mut figures: [Figures; 4] = Default::default();
    for round in 0..rounds {
        let [of_bare, of_checked, of_agreed, of_direct] = &mut figures;
        bare_turn(of_bare, &mut bare, &mut bytes);
        wire_turn(of_checked, &checked, &mut bytes);
        wire_turn(of_agreed, &agreed, &mut bytes);
        direct_turn(of_direct, &mut direct, &mut bytes);
        if round == 0 {
            // Caches and the machine's clock have warmed up.
            figures = Default::default();
        }
    }
    let (p50, speed) = (figures[0].p50(), figures[0].gigabytes_per_second());
    println!("{name:12} bare loop         p50 {p50:6.1} µs         {speed:5.2} GB/s");
    let agreed_name = if agreed.agreement().bare_data { "bare data" } else { "checked" };
    for (figures, what) in figures[1..].iter_mut().zip(["checked", agreed_name, "direct reader"]) {
        let (mine, times) = (figures.p50(), figures.p50() / p50);
        print!("{name:12} {what:17} p50 {mine:6.1} µs ({times:4.2})");
        if !figures.stretches.is_empty() {
            let mine = figures.gigabytes_per_second();
            print!("  {mine:5.2} GB/s ({:4.2})", speed / mine);
        }
        println!();
    }
    Ok(())
}

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20) + 1;
    println!("reads of 64 kB, one at a time and {DEPTH} under way; in brackets: how many times the bare loop's");
    measure("unix socket", rounds, || UnixStream::pair().expect("sockets can be had"))?;
    measure("TCP", rounds, tcp_pair)?;
    measure("in process", rounds, || Link::unpaced().pair())
}
