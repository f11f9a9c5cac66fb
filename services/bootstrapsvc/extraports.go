package bootstrapsvc

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// extraPorts are the ports beside 443 that were given, in their order.
func (c *Config) extraPorts() ([]baseline.Port, error) {
	var ports []baseline.Port
	var problems []error
	for _, text := range c.ExtraPorts {
		port, err := parsePort(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", text, err))
			continue
		}
		clashes := slices.ContainsFunc(ports, func(other baseline.Port) bool {
			return other.Name == port.Name || other.Port == port.Port && other.Protocol == port.Protocol
		})
		if clashes {
			problems = append(problems, fmt.Errorf("%q: its name, or its port and protocol, is given twice", text))
		}
		ports = append(ports, port)
	}
	return ports, errors.Join(problems...)
}

// parsePort reads "name:port[/protocol][:target port]".
func parsePort(text string) (baseline.Port, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return baseline.Port{}, errors.New("want name:port[/protocol][:target-port], such as konnectivity:8132/TCP:8091")
	}
	number, protocol, given := strings.Cut(parts[1], "/")
	if !given {
		protocol = string(corev1.ProtocolTCP)
	}
	port := baseline.Port{Name: parts[0], Protocol: corev1.Protocol(protocol)}
	if faults := validation.IsDNS1123Label(port.Name); len(faults) > 0 {
		return port, fmt.Errorf("%q is not the name of a port: %s", port.Name, strings.Join(faults, "; "))
	}
	if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, port.Protocol) {
		return port, fmt.Errorf("protocol %q: must be TCP, UDP or SCTP", protocol)
	}
	var err error
	if port.Port, err = parsePortNumber(number); err != nil {
		return port, err
	}
	port.TargetPort = port.Port
	if len(parts) == 3 {
		port.TargetPort, err = parsePortNumber(parts[2])
	}
	if baseline.IsOwnPort(port) {
		return port, errors.New("that is the kube-apiservers' own port")
	}
	return port, err
}

func parsePortNumber(text string) (int32, error) {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("%q is not a port, want 1 to 65535", text)
	}
	return int32(number), nil
}
