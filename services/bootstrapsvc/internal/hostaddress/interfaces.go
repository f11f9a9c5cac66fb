package hostaddress

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Where Linux lists its routes. Elsewhere the files are missing and no interface counts as that of a default route.
const (
	routesIPv4 = "/proc/net/route"
	routesIPv6 = "/proc/net/ipv6_route"
)

// Interfaces takes a snapshot of this machine's interfaces, in the order of the system.
func Interfaces() ([]Interface, error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	isDefault := defaultRoutes(readOrNothing(routesIPv4), readOrNothing(routesIPv6))
	snapshot := make([]Interface, 0, len(found))
	for _, each := range found {
		addresses, err := addressesOf(each)
		if err != nil {
			return nil, err
		}
		snapshot = append(snapshot, Interface{
			Name:         each.Name,
			Up:           each.Flags&net.FlagUp != 0,
			Addresses:    addresses,
			DefaultRoute: isDefault[each.Name],
		})
	}
	return snapshot, nil
}

// readOrNothing treats a file that cannot be read as empty: routes only refine the choice.
func readOrNothing(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(content)
}

func addressesOf(each net.Interface) ([]netip.Addr, error) {
	networks, err := each.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of interface %s: %w", each.Name, err)
	}
	var addresses []netip.Addr
	for _, network := range networks {
		if prefix, err := netip.ParsePrefix(network.String()); err == nil {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	return addresses, nil
}

// routeUp is RTF_UP, routeReject is RTF_REJECT of linux/route.h: a route that is not up, or that refuses, leads nowhere.
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// defaultRoutes names the interfaces to which a default route leads, from the text of Linux's two route files. Lines in
// another shape than expected are passed over.
func defaultRoutes(ipv4, ipv6 string) map[string]bool {
	isDefault := map[string]bool{}
	for line := range strings.Lines(ipv4) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask …
		fields := strings.Fields(line)
		if len(fields) >= 8 && isZero(fields[1]) && isZero(fields[7]) && leads(fields[3]) {
			isDefault[fields[0]] = true
		}
	}
	for line := range strings.Lines(ipv6) {
		// destination length source length next-hop metric references use flags interface
		fields := strings.Fields(line)
		if len(fields) >= 10 && isZero(fields[0]) && isZero(fields[1]) && leads(fields[8]) {
			isDefault[fields[9]] = true
		}
	}
	return isDefault
}

func isZero(hex string) bool { return strings.Trim(hex, "0") == "" }

func leads(flags string) bool {
	value, err := strconv.ParseUint(flags, 16, 64)
	return err == nil && value&routeUp != 0 && value&routeReject == 0
}
