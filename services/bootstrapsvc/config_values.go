package bootstrapsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/hostaddress"
)

// parseAPIServerURL returns nil for an empty text.
func parseAPIServerURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	given, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if given.Scheme != "https" || given.Hostname() == "" || given.User != nil || given.RawQuery != "" || given.Fragment != "" {
		return nil, fmt.Errorf("%q is not a URL like https://127.0.0.1:6443", given.Redacted())
	}
	return given, nil
}

// parseAdvertisedAddresses returns no address for an empty text.
func parseAdvertisedAddresses(text string, dualStack bool) (hostaddress.Addresses, error) {
	if text == "" {
		return hostaddress.Addresses{}, nil
	}
	first, second, isTwo := strings.Cut(text, ",")
	primary, err := parseAdvertisedAddress(first)
	if err != nil || !isTwo {
		return hostaddress.Addresses{Primary: primary}, err
	}
	secondary, err := parseAdvertisedAddress(second)
	switch {
	case err != nil:
		return hostaddress.Addresses{}, err
	case !dualStack:
		return hostaddress.Addresses{}, errors.New("has two addresses, which needs --dual-stack-endpoints")
	case hostaddress.FamilyOf(primary) == hostaddress.FamilyOf(secondary):
		return hostaddress.Addresses{}, fmt.Errorf("%s and %s are of one family, want one of each", primary, secondary)
	}
	return hostaddress.Addresses{Primary: primary, Secondary: secondary}, nil
}

func parseAdvertisedAddress(text string) (netip.Addr, error) {
	given, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	if err := hostaddress.Routable(given.Unmap()); err != nil {
		return netip.Addr{}, fmt.Errorf("%s %w; pods on other machines could not reach it", given, err)
	}
	return given.Unmap(), nil
}

func parseServiceRanges(text string) ([]netip.Prefix, error) {
	if text == "" {
		return nil, nil
	}
	var ranges []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		parsed, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q is not a range like 10.0.0.0/16", part)
		}
		if parsed.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is an IPv4 range in IPv6 notation, which kube-apiserver rejects", part)
		}
		if _, err := baseline.FirstAddress(parsed); err != nil {
			return nil, err
		}
		ranges = append(ranges, parsed.Masked())
	}
	if len(ranges) > 2 || len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4() {
		return nil, fmt.Errorf("%q: want one range, or one IPv4 and one IPv6 range", text)
	}
	return ranges, nil
}

func primaryOf(ranges []netip.Prefix) netip.Prefix {
	if len(ranges) == 0 {
		return netip.Prefix{}
	}
	return ranges[0]
}

// checkFamily rejects an address to which no Service of the range could lead. Either may be
// unknown.
func checkFamily(address netip.Addr, serviceRange netip.Prefix) error {
	if !address.IsValid() || !serviceRange.IsValid() {
		return nil
	}
	if has, want := hostaddress.FamilyOf(address), hostaddress.FamilyOf(serviceRange.Addr()); has != want {
		return fmt.Errorf("%s is %s, but the primary service range %s is %s", address, has, serviceRange, want)
	}
	if serviceRange.Contains(address) {
		return fmt.Errorf("%s lies in the service range %s; want the address of a machine", address, serviceRange)
	}
	return nil
}

func parseExtraPorts(texts []string) ([]baseline.Port, error) {
	var ports []baseline.Port
	var problems []error
	for _, text := range texts {
		port, err := parsePort(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", text, err))
			continue
		}
		conflicts := slices.ContainsFunc(ports, func(other baseline.Port) bool {
			return other.Name == port.Name || other.Port == port.Port && other.Protocol == port.Protocol
		})
		if conflicts {
			problems = append(problems, fmt.Errorf("%q: its name, or its port and protocol, is given twice", text))
		}
		ports = append(ports, port)
	}
	return ports, errors.Join(problems...)
}

func parsePort(text string) (baseline.Port, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return baseline.Port{}, errors.New("want name:port[/protocol][:target port], such as konnectivity:8132/TCP:8091")
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

func checkPort(port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("%d is not a port, want 1 to 65535, or 0 for none", port)
	}
	return nil
}

func checkPrefix(prefix string) error {
	if strings.Trim(prefix, "/") == "" {
		return fmt.Errorf("%q is not a prefix of keys, want one like /registry", prefix)
	}
	return nil
}

func checkAtLeast(duration, least time.Duration) error {
	if duration < least {
		return fmt.Errorf("%s is too short, want at least %s", duration, least)
	}
	return nil
}
