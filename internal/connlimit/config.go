package connlimit

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config has the limits of connections. In each field, 0 means no limit.
type Config struct {
	// MaxConnections limits the open connections.
	MaxConnections int
	// MaxPerAddress limits the open connections of one client address.
	MaxPerAddress int
	// MaxPerIdentity limits the open connections of one identity.
	MaxPerIdentity int
	// MaxHandshakes limits the TLS handshakes in progress. One address may have a quarter of them.
	MaxHandshakes int
	// Rate is the number of new connections per second. One address may have a tenth of them, and a
	// burst may have those of one second.
	Rate int
	// TrustLoopback exempts loopback addresses from the limits of an address.
	TrustLoopback bool
}

// DefaultConfig returns limits for ten thousand agents on one replica. After a break of all their
// connections, the rate lets them return within three seconds, less than an interval of their
// beats.
func DefaultConfig() Config {
	return Config{
		MaxConnections: 20_000,
		MaxPerAddress:  5_000,
		MaxPerIdentity: 50,
		MaxHandshakes:  1_000,
		Rate:           2_500,
	}
}

// RegisterFlags adds the flags of the limits to fs. The current values of c are their defaults.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.MaxConnections, "max-connections", c.MaxConnections,
		"Open connections at most; further ones are closed at once. 0 means no limit.")
	fs.IntVar(&c.MaxPerAddress, "max-connections-per-address", c.MaxPerAddress,
		"Open connections of one client address at most. 0 means no limit.")
	fs.IntVar(&c.MaxPerIdentity, "max-connections-per-identity", c.MaxPerIdentity,
		"Open connections of one client certificate's user, or of one address without certificates, at most. 0 means no limit.")
	fs.IntVar(&c.MaxHandshakes, "max-concurrent-handshakes", c.MaxHandshakes,
		"TLS handshakes in progress at most; a quarter of them for one client address. 0 means no limit.")
	fs.IntVar(&c.Rate, "connection-rate", c.Rate,
		"New connections per second; a tenth of them for one client address. 0 means no limit.")
	fs.BoolVar(&c.TrustLoopback, "unlimited-loopback", c.TrustLoopback,
		"Exempt clients on loopback from the limits of one address and of one identity.")
}

// Validate returns all problems of c.
func (c *Config) Validate() []error {
	var problems []error
	for _, flag := range []struct {
		name  string
		value int
	}{
		{"max-connections", c.MaxConnections},
		{"max-connections-per-address", c.MaxPerAddress},
		{"max-connections-per-identity", c.MaxPerIdentity},
		{"max-concurrent-handshakes", c.MaxHandshakes},
		{"connection-rate", c.Rate},
	} {
		if flag.value < 0 {
			problems = append(problems, fmt.Errorf("--%s: %d is negative; 0 means no limit", flag.name, flag.value))
		}
	}
	return problems
}
