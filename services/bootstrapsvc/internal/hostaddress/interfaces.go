package hostaddress

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Linux lists its routes in these files. Elsewhere they are missing, and no interface has a default
// route.
const (
	routesIPv4 = "/proc/net/route"
	routesIPv6 = "/proc/net/ipv6_route"
)

// Interfaces returns a snapshot of this machine's interfaces in the order of the system. If the
// routes cannot be read, no interface has a default route.
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

// readOrNothing treats an unreadable file as empty: routes only refine the choice.
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

// routeUp is RTF_UP and routeReject is RTF_REJECT of linux/route.h. A usable route is up and does
// not reject.
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// defaultRoutes returns the interfaces of default routes, from the text of Linux's two route files.
// It skips lines of another shape.
func defaultRoutes(ipv4, ipv6 string) map[string]bool {
	isDefault := map[string]bool{}
	for line := range strings.Lines(ipv4) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask …
		fields := strings.Fields(line)
		if len(fields) >= 8 && isZero(fields[1]) && isZero(fields[7]) && isUsable(fields[3]) {
			isDefault[fields[0]] = true
		}
	}
	for line := range strings.Lines(ipv6) {
		// destination length source length next-hop metric references use flags interface
		fields := strings.Fields(line)
		if len(fields) >= 10 && isZero(fields[0]) && isZero(fields[1]) && isUsable(fields[8]) {
			isDefault[fields[9]] = true
		}
	}
	return isDefault
}

func isZero(hex string) bool { return strings.Trim(hex, "0") == "" }

func isUsable(flags string) bool {
	value, err := strconv.ParseUint(flags, 16, 64)
	return err == nil && value&routeUp != 0 && value&routeReject == 0
}
