// Package localgateway is how commands find the gateway of a `trivet up` of the same user: a file
// with the environment variables that the commands read.
package localgateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/trivet-dev/trivet/internal/atomicfile"
	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// fileName is the name of the file in the folder of [path].
	fileName = "up.env"
	// acceptTimeout is how long a gateway on loopback may take to accept a connection.
	acceptTimeout = 300 * time.Millisecond
	// maxFileBytes bounds what is read of the file.
	maxFileBytes = 64 << 10
)

// Settings are what a command needs to call a gateway.
type Settings struct {
	// Server is the gRPC address, HTTPServer the address of the page, each host:port.
	Server, HTTPServer string
	// TLS has the authorities of the gateway and the client certificate of the user.
	TLS identity.Files
	// DemoSocket is the socket for `trivet break`; empty without --demo.
	DemoSocket string
}

// DemoSocketVariable is the environment variable of Settings.DemoSocket.
const DemoSocketVariable = "TRIVET_DEMO_SOCKET"

// Environment returns the settings as lines NAME=value.
func (s Settings) Environment() string {
	var text strings.Builder
	for _, variable := range s.variables() {
		if *variable.value != "" {
			fmt.Fprintf(&text, "%s=%s\n", variable.name, *variable.value)
		}
	}
	return text.String()
}

type variable struct {
	name  string
	value *string
}

func (s *Settings) variables() []variable {
	return []variable{
		{"TRIVET_SERVER", &s.Server}, {"TRIVET_HTTP_SERVER", &s.HTTPServer},
		{"TRIVET_CA_FILE", &s.TLS.CAFile}, {"TRIVET_CERT_FILE", &s.TLS.CertFile}, {"TRIVET_KEY_FILE", &s.TLS.KeyFile},
		{DemoSocketVariable, &s.DemoSocket},
	}
}

// Publish writes the settings where [Find] reads them. The returned function removes them, unless
// another process has replaced them.
func Publish(env func(string) string, settings Settings) (remove func(), err error) {
	file := path(env)
	if file == "" {
		return nil, fmt.Errorf("publish the address of the gateway: neither XDG_RUNTIME_DIR nor HOME is set")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	if err := checkOwn(os.Lstat(filepath.Dir(file))); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	text := []byte(settings.Environment())
	if err := atomicfile.Write(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	return func() {
		if current, err := os.ReadFile(file); err == nil && bytes.Equal(current, text) {
			_ = os.Remove(file)
		}
	}, nil
}

// Find returns the published settings. It reports false without any, if another user is able to
// write them, and if nothing accepts a connection at their address: a killed process leaves its
// file.
//
// The settings name the authorities of the gateway. Settings of another user would send the
// person's token to a server of that user: XDG_RUNTIME_DIR and HOME may be shared, or be those of
// another user after `su`.
func Find(env func(string) string) (Settings, bool) {
	file := path(env)
	if file == "" {
		return Settings{}, false
	}
	text, err := readOwn(file)
	if err != nil {
		return Settings{}, false
	}
	settings := parse(text)
	conn, err := net.DialTimeout("tcp", settings.Server, acceptTimeout)
	if err != nil {
		return Settings{}, false
	}
	_ = conn.Close()
	return settings, true
}

// readOwn reads a file that only this user is able to write or to replace.
func readOwn(path string) ([]byte, error) {
	if err := checkOwn(os.Lstat(filepath.Dir(path))); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := checkOwn(file.Stat()); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, maxFileBytes))
}

// checkOwn fails for a file or folder that another user is able to write.
func checkOwn(info os.FileInfo, err error) error {
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir() && !info.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file nor a folder", info.Name())
	case !ok || int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user", info.Name())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is writable by other users", info.Name())
	default:
		return nil
	}
}

func parse(text []byte) Settings {
	var settings Settings
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		for _, variable := range settings.variables() {
			if variable.name == name {
				*variable.value = value
			}
		}
	}
	return settings
}

// path returns the file of a user; empty if the environment names no folder of the user.
func path(env func(string) string) string {
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "trivet", fileName)
	}
	if home := env("HOME"); home != "" {
		return filepath.Join(home, ".cache", "trivet", fileName)
	}
	return ""
}
