//! The dashboard: in a real Chromium, as operators see and use it, and without one, as whoever would break it.

mod actions;
mod drawn;
mod gate;
mod http;
mod live;
mod notifications;
mod pages;
mod trouble;
mod world;
