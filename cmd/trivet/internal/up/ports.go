package up

import (
	"errors"
	"fmt"
	"net"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

// checkPorts says at once which of the documented ports are taken, before a control plane is started in vain. Somebody
// may still take one later; then the server that wanted it says so.
func checkPorts(opts Options) error {
	if opts.FreePorts {
		return nil
	}
	var taken []error
	for _, address := range documentedAddresses() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			taken = append(taken, err)
			continue
		}
		l.Close()
	}
	if len(taken) == 0 {
		return nil
	}
	return exit.UsageError(append(taken, errors.New("is another Trivet running? --free-ports avoids its ports"))...)
}

func documentedAddresses() []string {
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	addresses := []string{gate.HTTPListen}
	for _, program := range []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	} {
		cfg := process.DefaultConfig(program)
		addresses = append(addresses, cfg.RPC.Listen, cfg.Admin.Listen)
	}
	return addresses
}

// freeAddress finds a port that is free now; somebody else could take it before the gateway does, which then says so.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
