package up

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/trivet-dev/trivet/internal/atomicfile"
	"github.com/trivet-dev/trivet/internal/cli/localgateway"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
)

// settings are what commands need to call the gateway as the administrator.
type settings struct {
	// server is the gRPC address, httpServer the address of the page, each host:port.
	server, httpServer string
	tls                identity.Files
	// demoSocket is the socket for `trivet-lab break`; empty without --demo.
	demoSocket string
}

// lines returns the settings as environment variables, one formatted line for each.
func (s settings) lines(format func(name, value string) string) string {
	var text strings.Builder
	for _, variable := range [][2]string{
		{localgateway.ServerVariable, s.server}, {localgateway.HTTPServerVariable, s.httpServer},
		{localgateway.CAFileVariable, s.tls.CAFile}, {localgateway.CertFileVariable, s.tls.CertFile}, {localgateway.KeyFileVariable, s.tls.KeyFile},
		{faultcontroller.SocketVariable, s.demoSocket},
	} {
		if name, value := variable[0], variable[1]; value != "" {
			text.WriteString(format(name, value) + "\n")
		}
	}
	return text.String()
}

// publish writes the settings where [localgateway.Find] reads them. The returned function removes
// them, unless another process has replaced them.
func (s settings) publish(env func(string) string) (remove func(), err error) {
	file := localgateway.File(env)
	if file == "" {
		return nil, fmt.Errorf("publish the address of the gateway: neither XDG_RUNTIME_DIR nor HOME is set")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	if err := localgateway.CheckOwn(os.Lstat(filepath.Dir(file))); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	text := []byte(s.lines(func(name, value string) string { return name + "=" + value }))
	if err := atomicfile.Write(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("publish the address of the gateway: %w", err)
	}
	return func() {
		if current, err := os.ReadFile(file); err == nil && bytes.Equal(current, text) {
			_ = os.Remove(file)
		}
	}, nil
}

// writeScript writes a file that a shell reads to get the settings, and returns its path.
func (s settings) writeScript(dir string) (string, error) {
	text := s.lines(func(name, value string) string {
		return fmt.Sprintf("export %s='%s'", name, strings.ReplaceAll(value, "'", `'\''`))
	})
	path := filepath.Join(dir, "client.env")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write the settings of clients: %w", err)
	}
	return path, nil
}
