package httpaccess

import (
	"net"
	"strings"
	"testing"
)

// listener is a listener at an address. It does not listen there.
type listener struct {
	net.Listener
	at string
}

func (l listener) Addr() net.Addr {
	address, err := net.ResolveTCPAddr("tcp", l.at)
	if err != nil {
		panic(err)
	}
	return address
}

func TestListener_OnlyWithCertificatesAndAuthorizationBeyondLoopback(t *testing.T) {
	for _, c := range []struct {
		access   *Access
		at, want string
	}{
		{access: nil, at: "127.0.0.1:1"},
		{access: nil, at: "0.0.0.0:1", want: "--a=0.0.0.0:1: with --insecure"},
		{access: New(Config{AlwaysAllow: true}), at: "[::1]:1"},
		{access: New(Config{AlwaysAllow: true}), at: "192.0.2.1:1", want: "--a=192.0.2.1:1: with --authorization-mode=AlwaysAllow"},
		{access: New(Config{}), at: "192.0.2.1:1"},
	} {
		for name, check := range map[string]func() error{
			"address":  func() error { return c.access.Check("--a", c.at) },
			"listener": func() error { _, err := c.access.Listener(listener{at: c.at}, "--a"); return err },
		} {
			if err := check(); (err != nil) != (c.want != "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s %s: %v, want %q", name, c.at, err, c.want)
			}
		}
	}
}
