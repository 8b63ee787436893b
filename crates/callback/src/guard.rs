//! The guard: which addresses a callback may go to. Clients write the targets, and the callback sender is inside the
//! operator's network.
//!
//! Two questions, both answered without I/O: may this URL be called, and may this address be connected to? The first is
//! asked when a callback is taken and before each try, the second for every address that a name resolves to. A URL is
//! judged as it is written before it is parsed, because parsers repair what they should refuse, and each in its own
//! way.
//!
//! There is no list of forbidden hosts: whatever is not public is forbidden, unless the operator allows it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use relais_core::NotAllowed;
use url::{Host, Url};

/// The longest URL.
pub const MAX_URL: usize = 2048;

/// The longest name that DNS can hold, and its longest label.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Names that mean something only inside a network, with all that ends in them.
const INTERNAL: [&str; 10] =
    ["localhost", "local", "internal", "localdomain", "home.arpa", "lan", "intranet", "corp", "home", "private"];

/// IPv4 networks that are not the public internet, or where a provider keeps what only its machines may see.
const NOT_PUBLIC_V4: [([u8; 4], u8); 17] = [
    ([0, 0, 0, 0], 8),          // this network
    ([10, 0, 0, 0], 8),         // private
    ([100, 64, 0, 0], 10),      // behind a carrier's NAT; a provider's metadata (100.100.100.200)
    ([127, 0, 0, 0], 8),        // loopback
    ([168, 63, 129, 16], 32),   // a provider's metadata, though it looks public (Azure)
    ([169, 254, 0, 0], 16),     // link-local; most providers' metadata (169.254.169.254)
    ([172, 16, 0, 0], 12),      // private
    ([192, 0, 0, 0], 24),       // protocol assignments; a provider's metadata (192.0.0.192)
    ([192, 0, 2, 0], 24),       // documentation
    ([192, 88, 99, 0], 24),     // relays from 6to4, given up
    ([192, 168, 0, 0], 16),     // private
    ([198, 18, 0, 0], 15),      // benchmarks
    ([198, 51, 100, 0], 24),    // documentation
    ([203, 0, 113, 0], 24),     // documentation
    ([224, 0, 0, 0], 4),        // multicast
    ([240, 0, 0, 0], 4),        // reserved
    ([255, 255, 255, 255], 32), // broadcast
];

/// IPv6 networks that are not the public internet, though they are in `2000::/3`. All the rest is refused anyway:
/// loopback, unspecified, unique local, link-local, site-local, multicast, discard, local NAT64, IPv4-compatible.
const NOT_PUBLIC_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments: Teredo, benchmarks, ORCHID
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4: leads to any IPv4 address
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// What an operator allows, checked.
#[derive(Debug, Clone)]
pub struct Guard {
    allow_http: bool,
    hosts: Vec<HostRule>,
    networks: Vec<IpNet>,
    ports: Vec<u16>,
}

/// What an operator allows, and can not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It is neither a host nor a pattern.
    #[error("{0:?} is not a host: a name, *.name or an address is wanted, without a port")]
    Host(String),
    /// It is not a network.
    #[error("{0:?} is not a network: an address or a CIDR such as 10.0.0.0/8 is wanted")]
    Network(String),
}

/// A host that may be called although it is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HostRule {
    /// This one.
    Exact(String),
    /// All whose names end so; the dot is part of it.
    Suffix(String),
}

impl HostRule {
    fn read(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Host(text.to_owned());
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::Exact(format!("[{address}]")));
        }
        let (name, is_suffix) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        match Host::parse(name).map_err(|_| wrong())? {
            Host::Domain(name) => {
                let name = plain_name(&name).ok_or_else(wrong)?.to_owned();
                Ok(if is_suffix { Self::Suffix(format!(".{name}")) } else { Self::Exact(name) })
            }
            address if !is_suffix => Ok(Self::Exact(address.to_string())),
            _ => Err(wrong()),
        }
    }

    fn covers(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => host == name,
            Self::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        }
    }
}

impl Guard {
    /// Reads what an operator allows: plain `http`; hosts (`name`, `*.name` or an address) that may resolve to
    /// anything; networks that may be connected to; and the ports, where none means 443, and 80 if `http` is allowed.
    pub fn new(allow_http: bool, hosts: &[String], networks: &[String], ports: &[u16]) -> Result<Self, RuleError> {
        let hosts = hosts.iter().map(|text| HostRule::read(text.trim())).collect::<Result<_, _>>()?;
        let networks = networks
            .iter()
            .map(|text| {
                let text = text.trim();
                let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
                network.map_err(|_| RuleError::Network(text.to_owned()))
            })
            .collect::<Result<_, _>>()?;
        let ports = match (ports, allow_http) {
            ([], false) => vec![443],
            ([], true) => vec![443, 80],
            (ports, _) => ports.to_vec(),
        };
        Ok(Self { allow_http, hosts, networks, ports })
    }

    /// Judges a URL: all that can be seen of it without asking DNS. Gives it back as it is to be called.
    pub fn judge_url(&self, text: &str) -> Result<Url, NotAllowed> {
        judge_spelling(text)?;
        let mut url = Url::parse(text).map_err(|error| NotAllowed(format!("the URL can not be read: {error}")))?;
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            _ => return refuse("only https URLs are allowed"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("the URL must not carry credentials");
        }
        match url.host() {
            None => return refuse("the URL has no host"),
            Some(Host::Ipv4(address)) => self.judge_literal(address.into(), &url)?,
            Some(Host::Ipv6(address)) => self.judge_literal(address.into(), &url)?,
            Some(Host::Domain(name)) => {
                let Some(plain) = plain_name(name) else {
                    return refuse("the URL's host is not a name of DNS");
                };
                self.judge_name(plain)?;
                if plain.len() < name.len() {
                    // The root's dot would make another endpoint, and another name in certificates, of the same host.
                    let plain = plain.to_owned();
                    url.set_host(Some(&plain)).map_err(|error| NotAllowed(error.to_string()))?;
                }
            }
        }
        match url.port_or_known_default() {
            Some(port) if self.ports.contains(&port) => Ok(url),
            port => refuse(&format!("the port {} is not allowed", port.unwrap_or_default())),
        }
    }

    /// Judges an address that is to be connected to.
    pub fn judge_address(&self, address: IpAddr) -> Result<(), NotAllowed> {
        let plain = without_disguise(address);
        let allowed = |address: &IpAddr| self.networks.iter().any(|network| network.contains(address));
        if allowed(&address) || allowed(&plain) || is_public(address) {
            return Ok(());
        }
        refuse(&format!("the address {address} is not allowed"))
    }

    /// Judges all addresses that a name resolved to. One that is not allowed is enough to refuse the name: whoever
    /// answers for it is not to be trusted with the choice.
    pub fn judge_answer(&self, name: &str, addresses: &[IpAddr]) -> Result<(), NotAllowed> {
        if self.is_allowed_host(name) {
            return Ok(());
        }
        addresses.iter().try_for_each(|&address| self.judge_address(address))
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|rule| rule.covers(host))
    }

    fn judge_literal(&self, address: IpAddr, url: &Url) -> Result<(), NotAllowed> {
        if url.host_str().is_some_and(|host| self.is_allowed_host(host)) {
            return Ok(());
        }
        self.judge_address(address)
    }

    fn judge_name(&self, name: &str) -> Result<(), NotAllowed> {
        let ends_in = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if self.is_allowed_host(name) || (name.contains('.') && !INTERNAL.into_iter().any(ends_in)) {
            return Ok(());
        }
        refuse(&format!("the host {name} is not allowed"))
    }
}

/// Whether an address is of the public internet. An IPv4 address inside an IPv6 address (mapped, NAT64) is checked as
/// IPv4.
pub fn is_public(address: IpAddr) -> bool {
    match without_disguise(address) {
        IpAddr::V4(address) => {
            !NOT_PUBLIC_V4.iter().any(|&(network, length)| shares_v4(address, Ipv4Addr::from(network), length))
        }
        IpAddr::V6(address) => {
            let segments = address.segments();
            // An interface that tunnels to the IPv4 address in its last half (ISATAP) can have any prefix.
            let is_tunnel = segments[4] & 0xfcff == 0 && segments[5] == 0x5efe;
            (0x2000..0x4000).contains(&segments[0])
                && !is_tunnel
                && !NOT_PUBLIC_V6.iter().any(|&(network, length)| shares_v6(address, network, length))
        }
    }
}

/// The IPv4 address that an IPv6 address stands for, where a connection to one is a connection to the other. Networks
/// without IPv4 see all of it through the NAT64 prefix, so that one is not refused as a whole.
fn without_disguise(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

fn shares_v4(address: Ipv4Addr, network: Ipv4Addr, length: u8) -> bool {
    (u32::from(address) ^ u32::from(network)).leading_zeros() >= u32::from(length)
}

fn shares_v6(address: Ipv6Addr, network: Ipv6Addr, length: u8) -> bool {
    (u128::from(address) ^ u128::from(network)).leading_zeros() >= u32::from(length)
}

/// Judges a URL as it is written. What a parser repairs (`https:/\host`, a newline inside, `https:host`) is refused:
/// the next one to read it may repair it otherwise.
fn judge_spelling(text: &str) -> Result<(), NotAllowed> {
    if text.len() > MAX_URL {
        return refuse(&format!("the URL is longer than {MAX_URL} bytes"));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("the URL must not contain white space or control characters");
    }
    if text.contains('\\') {
        return refuse("the URL must not contain backslashes");
    }
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http") => rest,
        _ => return refuse("the URL must begin with https://"),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return refuse("the URL has no host");
    }
    if authority.contains('@') {
        return refuse("the URL must not carry credentials");
    }
    if rest.contains('#') {
        return refuse("the URL must not have a fragment: it would not be sent");
    }
    Ok(())
}

/// A name as DNS knows it, without the root's dot; none if it is no such name.
fn plain_name(name: &str) -> Option<&str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let fine = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
    };
    (name.len() <= MAX_NAME && name.split('.').all(fine)).then_some(name)
}

fn refuse<T>(why: &str) -> Result<T, NotAllowed> {
    Err(NotAllowed(why.to_owned()))
}
