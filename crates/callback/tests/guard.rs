//! What may be called and what may not, case by case.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::IpAddr;

use relais_callback::guard::{Guard, MAX_URL, RuleError, is_public};

fn guard(allow_http: bool, hosts: &[&str], networks: &[&str], ports: &[u16]) -> Result<Guard, RuleError> {
    let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    Guard::new(allow_http, &own(hosts), &own(networks), ports)
}

fn usual() -> Guard {
    guard(false, &[], &[], &[]).unwrap()
}

const ADDRESS: &str = "the address";
const HOST: &str = "the host";
const SPACE: &str = "white space or control";
const BEGIN: &str = "must begin with https://";
const NO_HOST: &str = "has no host";
const CREDENTIALS: &str = "credentials";
const PORT: &str = "the port";
const UNREADABLE: &str = "can not be read";

/// What is wrong with it, the URL, and what it is told.
const HOSTILE: &[(&str, &str, &str)] = &[
    ("nothing", "", BEGIN),
    ("a word", "example.org", BEGIN),
    ("a path", "/etc/passwd", BEGIN),
    ("a network path", "//example.org/", BEGIN),
    ("a file", "file:///etc/passwd", BEGIN),
    ("another scheme", "ftp://example.org/", BEGIN),
    ("gopher", "gopher://example.org:6379/_FLUSHALL", BEGIN),
    ("data", "data:text/plain,hello", BEGIN),
    ("a script", "javascript:alert(1)", BEGIN),
    ("another scheme before ours", "x-https://example.org/", BEGIN),
    ("our scheme inside another", "jar:https://example.org/!/", BEGIN),
    ("plain http", "http://example.org/", "only https"),
    ("plain http, loudly", "HTTP://EXAMPLE.ORG/", "only https"),
    ("no slashes", "https:example.org", BEGIN),
    ("one slash", "https:/example.org", BEGIN),
    ("three slashes", "https:///example.org/", NO_HOST),
    ("no host", "https://", NO_HOST),
    ("no host, but a path", "https:///", NO_HOST),
    ("no host, but a port", "https://:443/", UNREADABLE),
    ("a query for a host", "https://?example.org", NO_HOST),
    ("backslashes for slashes", "https:\\\\example.org\\", "backslashes"),
    ("a slash and a backslash", "https:/\\example.org/", "backslashes"),
    ("a backslash before the at sign", "https://example.org\\@127.0.0.1/", "backslashes"),
    ("a backslash in the path", "https://example.org/a\\b", "backslashes"),
    ("a space before", " https://example.org/", SPACE),
    ("a space after", "https://example.org/ ", SPACE),
    ("a space inside", "https://example.org/a b", SPACE),
    ("a tab in the host", "https://exa\tmple.org/", SPACE),
    ("a newline in the host", "https://127.0.0\n.1/", SPACE),
    ("a header smuggled in", "https://example.org/\r\nHost: evil", SPACE),
    ("NUL", "https://example.org/\0", SPACE),
    ("DEL", "https://example.org/\u{7f}", SPACE),
    ("a space that does not break", "https://example.org/\u{a0}", SPACE),
    ("a line separator", "https://example.org/\u{2028}", SPACE),
    ("a user", "https://user@example.org/", CREDENTIALS),
    ("a user and a password", "https://user:secret@example.org/", CREDENTIALS),
    ("an empty user", "https://@example.org/", CREDENTIALS),
    ("an empty user and password", "https://:@example.org/", CREDENTIALS),
    ("a host that is a user", "https://example.org@127.0.0.1/", CREDENTIALS),
    ("two at signs", "https://a@example.org@127.0.0.1/", CREDENTIALS),
    ("a fragment", "https://example.org/#x", "fragment"),
    ("an empty fragment", "https://example.org/#", "fragment"),
    ("a fragment before an at sign", "https://example.org#@127.0.0.1/", "fragment"),
    ("a port of ssh", "https://example.org:22/", PORT),
    ("the port of http", "https://example.org:80/", PORT),
    ("a port of redis", "https://example.org:6379/", PORT),
    ("port 0", "https://example.org:0/", PORT),
    ("a port beyond all", "https://example.org:65979/", UNREADABLE),
    ("a port that is a word", "https://example.org:https/", UNREADABLE),
    ("loopback", "https://127.0.0.1/", ADDRESS),
    ("another loopback", "https://127.8.9.10/", ADDRESS),
    ("loopback with a dot", "https://127.0.0.1./", ADDRESS),
    ("loopback, short", "https://127.1/", ADDRESS),
    ("loopback, shorter", "https://127.0.1/", ADDRESS),
    ("loopback, decimal", "https://2130706433/", ADDRESS),
    ("loopback, octal", "https://0177.0.0.1/", ADDRESS),
    ("loopback, octal at once", "https://017700000001/", ADDRESS),
    ("loopback, hexadecimal", "https://0x7f.0.0.1/", ADDRESS),
    ("loopback, hexadecimal at once", "https://0x7f000001/", ADDRESS),
    ("loopback, mixed", "https://0x7f.0.1/", ADDRESS),
    ("loopback, escaped", "https://%31%32%37.0.0.1/", ADDRESS),
    ("loopback, wide", "https://１２７.０.０.１/", ADDRESS),
    ("loopback, in circles", "https://①②⑦.⓪.⓪.①/", ADDRESS),
    ("loopback, other dots", "https://127。0。0。1/", ADDRESS),
    ("unspecified", "https://0.0.0.0/", ADDRESS),
    ("unspecified, short", "https://0/", ADDRESS),
    ("private, 10", "https://10.0.0.1/", ADDRESS),
    ("private, 172.16", "https://172.16.0.1/", ADDRESS),
    ("private, 172.31", "https://172.31.255.254/", ADDRESS),
    ("private, 192.168", "https://192.168.1.1/", ADDRESS),
    ("private, octal", "https://012.0.0.1/", ADDRESS),
    ("behind a carrier's NAT", "https://100.64.0.1/", ADDRESS),
    ("metadata", "https://169.254.169.254/latest/meta-data/", ADDRESS),
    ("metadata, decimal", "https://2852039166/", ADDRESS),
    ("metadata, octal", "https://0251.0376.0251.0376/", ADDRESS),
    ("metadata that looks public", "https://168.63.129.16/", ADDRESS),
    ("multicast", "https://224.0.0.1/", ADDRESS),
    ("broadcast", "https://255.255.255.255/", ADDRESS),
    ("reserved", "https://240.0.0.1/", ADDRESS),
    ("too many numbers", "https://1.2.3.4.5/", UNREADABLE),
    ("a number too large", "https://256.256.256.256/", UNREADABLE),
    ("IPv6 loopback", "https://[::1]/", ADDRESS),
    ("IPv6 loopback, long", "https://[0:0:0:0:0:0:0:1]/", ADDRESS),
    ("IPv6 unspecified", "https://[::]/", ADDRESS),
    ("IPv6 unique local", "https://[fd00::1]/", ADDRESS),
    ("IPv6 metadata", "https://[fd00:ec2::254]/", ADDRESS),
    ("IPv6 link-local", "https://[fe80::1]/", ADDRESS),
    ("IPv6 with a zone", "https://[fe80::1%25eth0]/", UNREADABLE),
    ("IPv4-mapped loopback", "https://[::ffff:127.0.0.1]/", ADDRESS),
    ("IPv4-mapped metadata, hexadecimal", "https://[::ffff:a9fe:a9fe]/", ADDRESS),
    ("IPv4-compatible loopback", "https://[::127.0.0.1]/", ADDRESS),
    ("NAT64 of loopback", "https://[64:ff9b::127.0.0.1]/", ADDRESS),
    ("6to4 of loopback", "https://[2002:7f00:1::]/", ADDRESS),
    ("Teredo", "https://[2001::1]/", ADDRESS),
    ("half an IPv6", "https://[::1/", UNREADABLE),
    ("localhost", "https://localhost/", HOST),
    ("localhost, loudly", "https://LOCALHOST/", HOST),
    ("localhost with a dot", "https://localhost./", HOST),
    ("localhost, escaped", "https://%6cocalhost/", HOST),
    ("localhost, in circles", "https://ⓛocalhost/", HOST),
    ("localhost, with a hyphen nobody sees", "https://local\u{ad}host/", HOST),
    ("under localhost", "https://a.localhost/", HOST),
    ("one label", "https://db/", HOST),
    ("mDNS", "https://printer.local/", HOST),
    ("a cluster", "https://kubernetes.default.svc.cluster.local/", HOST),
    ("internal", "https://api.internal/", HOST),
    ("metadata by name", "https://metadata.google.internal/", HOST),
    ("metadata by name, with a dot", "https://metadata.google.internal./", HOST),
    ("localdomain", "https://localhost.localdomain/", HOST),
    ("a home", "https://nas.home.arpa/", HOST),
    ("a LAN", "https://nas.lan/", HOST),
    ("empty labels", "https://example..org/", "not a name"),
    ("two dots at the end", "https://example.org../", "not a name"),
    ("only a dot", "https://./", "not a name"),
    ("a star", "https://*.example.org/", "not a name"),
    ("a forbidden character", "https://exa<mple.org/", UNREADABLE),
    ("broken punycode", "https://xn--a/", UNREADABLE),
];

#[test]
fn hostile_urls_are_refused() {
    let guard = usual();
    let mut wrong = Vec::new();
    for (name, url, why) in HOSTILE {
        match guard.judge_url(url) {
            Ok(read) => wrong.push(format!("{name}: {url:?} is taken for {read}")),
            Err(refusal) if refusal.0.contains(why) => {}
            Err(refusal) => wrong.push(format!("{name}: {url:?} is told {:?}, not {why:?}", refusal.0)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(HOSTILE.len() >= 45);
}

#[test]
fn long_urls_and_names_are_refused() {
    let url = |length: usize| format!("https://example.org/{}", "a".repeat(length - "https://example.org/".len()));
    assert!(usual().judge_url(&url(MAX_URL)).is_ok());
    assert!(usual().judge_url(&url(MAX_URL + 1)).unwrap_err().0.contains("longer than 2048"));
    assert!(usual().judge_url(&format!("https://{}.org/", "a".repeat(63))).is_ok());
    assert!(usual().judge_url(&format!("https://{}.org/", "a".repeat(64))).is_err());
    assert!(usual().judge_url(&format!("https://{}org/", "a.".repeat(126))).is_err());
}

#[test]
fn public_urls_are_allowed_and_come_back_as_they_are_called() {
    for (url, called) in [
        ("https://example.org", "https://example.org/"),
        ("https://example.org/", "https://example.org/"),
        ("HTTPS://Example.ORG/Path?q=1&r=%20", "https://example.org/Path?q=1&r=%20"),
        ("https://example.org:443/x", "https://example.org/x"),
        ("https://example.org:/x", "https://example.org/x"),
        ("https://example.org./x", "https://example.org/x"),
        ("https://hooks.example.co.uk/a/../b", "https://hooks.example.co.uk/b"),
        ("https://example.org/user@host", "https://example.org/user@host"),
        ("https://example.org/?to=https://127.0.0.1/", "https://example.org/?to=https://127.0.0.1/"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://a_b.example.org/", "https://a_b.example.org/"),
        ("https://localhost.example.org/", "https://localhost.example.org/"),
        ("https://notlocal.example/", "https://notlocal.example/"),
        ("https://mylocalhost.org/", "https://mylocalhost.org/"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
        ("https://172.32.0.1/", "https://172.32.0.1/"),
        ("https://[2606:4700::1111]/", "https://[2606:4700::1111]/"),
    ] {
        assert_eq!(usual().judge_url(url).map(String::from).unwrap(), called, "{url}");
    }
}

#[test]
fn operators_allow_http_and_ports() {
    let guard = guard(true, &[], &[], &[]).unwrap();
    assert!(guard.judge_url("http://example.org/").is_ok());
    assert!(guard.judge_url("https://example.org/").is_ok());
    assert!(guard.judge_url("http://example.org:8080/").is_err());
    assert!(guard.judge_url("http://127.0.0.1/").is_err());

    let guard = self::guard(false, &[], &[], &[8443]).unwrap();
    assert!(guard.judge_url("https://example.org:8443/").is_ok());
    assert!(guard.judge_url("https://example.org/").is_err(), "the list replaces the usual one");
}

#[test]
fn operators_allow_hosts() {
    let hosts = ["Db", "*.svc.cluster.local", "localhost", "10.0.0.7", "::1", "bücher.internal", "dot.internal."];
    let guard = guard(false, &hosts, &[], &[]).unwrap();
    for url in [
        "https://db/",
        "https://DB./",
        "https://a.svc.cluster.local/",
        "https://a.b.svc.cluster.local/",
        "https://localhost/",
        "https://10.0.0.7/",
        "https://[::1]/",
        "https://bücher.internal/",
        "https://dot.internal/",
    ] {
        assert!(guard.judge_url(url).is_ok(), "{url}");
    }
    for url in [
        "https://svc.cluster.local/",
        "https://evilsvc.cluster.local/",
        "https://db.internal/",
        "https://a.localhost/",
        "https://10.0.0.8/",
        "https://db:22/",
    ] {
        assert!(guard.judge_url(url).is_err(), "{url}");
    }
    let anything: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
    assert!(guard.judge_answer("db", &anything).is_ok());
    assert!(guard.judge_answer("a.svc.cluster.local", &anything).is_ok());
    assert!(guard.judge_answer("example.org", &anything).is_err());
}

#[test]
fn operators_allow_networks() {
    let guard = guard(false, &[], &["10.1.0.0/16", "192.168.7.7", "fd12::/16"], &[]).unwrap();
    for address in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "192.168.7.7", "fd12::1", "8.8.8.8"] {
        assert!(guard.judge_address(address.parse().unwrap()).is_ok(), "{address}");
    }
    for address in ["10.2.0.1", "::ffff:10.2.0.1", "192.168.7.8", "fd13::1", "127.0.0.1"] {
        assert!(guard.judge_address(address.parse().unwrap()).is_err(), "{address}");
    }
    assert!(guard.judge_url("https://10.1.2.3/").is_ok());
    assert!(guard.judge_url("https://db/").is_err(), "a network allows no names");
    let mixed: [IpAddr; 2] = ["8.8.8.8".parse().unwrap(), "10.2.0.1".parse().unwrap()];
    assert!(guard.judge_answer("example.org", &mixed[..1]).is_ok());
    assert_eq!(guard.judge_answer("example.org", &mixed).unwrap_err().0, "the address 10.2.0.1 is not allowed");
}

#[test]
fn invalid_allow_lists_of_the_guard_are_refused() {
    for host in
        ["", "*", "*.", "*.10.0.0.1", "a.*.org", "*a.org", "example.org:443", "https://example.org", "a b", "a..b"]
    {
        assert_eq!(guard(false, &[host], &[], &[]).unwrap_err(), RuleError::Host(host.to_owned()), "{host}");
    }
    for network in ["", "10.0.0.0/33", "10.0.0", "everything", "10.0.0.0/8/8"] {
        assert_eq!(
            guard(false, &[], &[network], &[]).unwrap_err(),
            RuleError::Network(network.to_owned()),
            "{network}"
        );
    }
}

#[test]
fn addresses_that_are_not_public_are_known() {
    for address in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.255",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.0",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "192.168.255.255",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::2",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::8.8.8.8",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "2a00:1450::5efe:127.0.0.1",
        "2a00:1450::200:5efe:10.0.0.1",
        "fc00::1",
        "fd00::1",
        "fd00:ec2::254",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ] {
        assert!(!is_public(address.parse().unwrap()), "{address}");
    }
}

#[test]
fn addresses_that_are_public_are_known() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "168.63.129.15",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.1",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2003::1",
        "2606:4700::1111",
        "2a00:1450:4001::1",
        "2600::",
    ] {
        assert!(is_public(address.parse().unwrap()), "{address}");
    }
}
