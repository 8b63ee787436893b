//! Walks through every state that a model can reach, breadth first, so that what goes wrong is told by a shortest
//! story.
//!
//! Written here, in a hundred lines, rather than taken from `stateright`: that brings a web server and some fifteen
//! crates along, and has no way to ask the question that matters most, whether from *every* state an end can still be
//! reached.
//!
//! For tests only: `crates/core/tests/model` and `crates/notify/tests/model`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Debug},
    hash::Hash,
    rc::Rc,
};

/// Something that is in a state and takes steps.
pub trait Model {
    /// All that there is at a moment.
    type State: Clone + Eq + Hash + Debug;
    /// Something that happens.
    type Step: Clone + Debug;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// What may happen next.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// What a step leads to, or which promise it breaks.
    fn take(&self, state: &Self::State, step: &Self::Step) -> Result<Self::State, String>;

    /// Whether all promises about a state hold; if not, which one is broken.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// Whether all is done, and how it ended.
    fn end(&self, state: &Self::State) -> Option<String>;

    /// Whether a step can be counted on: what goes wrong, and what somebody may do or not do, can not.
    fn is_certain(&self, step: &Self::Step) -> bool;
}

/// What was found where all promises hold.
#[derive(Debug)]
pub struct Explored {
    /// All states that can be reached.
    pub states: usize,
    /// All steps between them.
    pub steps: usize,
    /// In how many states all is done, by how it ended.
    pub ends: BTreeMap<String, usize>,
}

/// A promise that is broken, and how it comes to that.
#[derive(Debug)]
pub struct Broken {
    /// The promise.
    pub promise: String,
    /// What happens, from the start.
    pub story: Vec<String>,
    /// What it comes to.
    pub state: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.promise)?;
        for (number, step) in self.story.iter().enumerate() {
            writeln!(f, "{:>3}. {step}", number + 1)?;
        }
        write!(f, "     {}", self.state)
    }
}

/// Where a state was first found: the state before it, and the step.
type Origin<S> = Option<(usize, S)>;

struct Walk<M: Model> {
    model: M,
    found: HashMap<Rc<M::State>, usize>,
    states: Vec<Rc<M::State>>,
    origins: Vec<Origin<M::Step>>,
}

/// Explores all of a model.
pub fn explore<M: Model>(model: M) -> Result<Explored, Box<Broken>> {
    let mut walk = Walk { found: HashMap::new(), states: Vec::new(), origins: Vec::new(), model };
    let start = walk.model.start();
    walk.find(start, None);
    let (mut at, mut steps, mut ends) = (0, 0, BTreeMap::new());
    // Who leads to a state by a step that can be counted on.
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut done = Vec::new();
    while at < walk.states.len() {
        let state = Rc::clone(&walk.states[at]);
        walk.model.check(&state).map_err(|promise| walk.broken(promise, at, None))?;
        if let Some(end) = walk.model.end(&state) {
            *ends.entry(end).or_default() += 1;
            done.push(at);
        }
        for step in walk.model.steps(&state) {
            steps += 1;
            let next = match walk.model.take(&state, &step) {
                Ok(next) => next,
                Err(promise) => return Err(walk.broken(promise, at, Some(&step))),
            };
            let certain = walk.model.is_certain(&step);
            let next = walk.find(next, Some((at, step)));
            before.resize_with(walk.states.len(), Vec::new);
            if certain && next != at {
                before[next].push(at);
            }
        }
        at += 1;
    }
    let mut hopeful = vec![false; walk.states.len()];
    while let Some(at) = done.pop() {
        if !std::mem::replace(&mut hopeful[at], true) {
            done.extend(&before[at]);
        }
    }
    match hopeful.iter().position(|hope| !hope) {
        Some(stuck) => Err(walk.broken("from every state an end can be reached".to_owned(), stuck, None)),
        None => Ok(Explored { states: walk.states.len(), steps, ends }),
    }
}

impl<M: Model> Walk<M> {
    fn find(&mut self, state: M::State, origin: Origin<M::Step>) -> usize {
        if let Some(&at) = self.found.get(&state) {
            return at;
        }
        let (at, state) = (self.states.len(), Rc::new(state));
        self.found.insert(Rc::clone(&state), at);
        self.states.push(state);
        self.origins.push(origin);
        at
    }

    fn broken(&self, promise: String, mut at: usize, last: Option<&M::Step>) -> Box<Broken> {
        let state = format!("{:?}", self.states[at]);
        let mut story: Vec<String> = last.map(|step| format!("{step:?}")).into_iter().collect();
        while let Some((before, step)) = &self.origins[at] {
            story.push(format!("{step:?}"));
            at = *before;
        }
        story.reverse();
        Box::new(Broken { promise, story, state })
    }
}
