package httpaccess

import "testing"

// A name that a website can resolve to 127.0.0.1 is not a name of this machine.
func TestIsOwnName(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:80": true, "127.0.0.1": true, "127.0.0.1:7680": true, "[::1]": true, "[::1]:7680": true, "::1": true, "10.0.0.1": true,
		"": false, ":80": false, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"127.0.0.1.": false, "localhost.": false, "0x7f000001": false, "2130706433": false, "evil.example:127.0.0.1": false,
	} {
		if got := IsOwnName(host); got != want {
			t.Errorf("IsOwnName(%q) = %v, want %v", host, got, want)
		}
	}
}
