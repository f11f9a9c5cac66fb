package connlimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	flagsOfTCP = 13 // offset in the header of TCP
	tcpSyn     = 0x02
	tcpAck     = 0x10

	// networkHeader is where a socket filter finds the header of IP: SKF_NET_OFF in linux/filter.h.
	networkHeader   = 0xfff00000
	sourceOfIPv4    = networkHeader + 12
	sourceOfIPv6    = networkHeader + 8
	versionOfIP     = networkHeader
	versionBits     = 0xf0
	versionFour     = 0x40
	wholePacket     = 1 << 18
	instructionsOf4 = 2 // for each address of IPv4
)

// installer returns a function that makes the kernel ignore the first packets of addresses, or nil
// if the listener is not one of TCP.
func installer(listener net.Listener) func([]netip.Addr) error {
	withSocket, ok := listener.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := withSocket.SyscallConn()
	if err != nil {
		return nil
	}
	return func(addresses []netip.Addr) error {
		var result error
		if err := raw.Control(func(fd uintptr) { result = install(int(fd), addresses) }); err != nil {
			return err
		}
		return result
	}
}

func install(socket int, addresses []netip.Addr) error {
	if len(addresses) == 0 {
		err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("detach the filter of the listener: %w", err)
		}
		return nil
	}
	assembled, err := bpf.Assemble(ignoring(addresses))
	if err != nil {
		return fmt.Errorf("assemble the filter of the listener: %w", err)
	}
	filter := make([]unix.SockFilter, len(assembled))
	for i, one := range assembled {
		filter[i] = unix.SockFilter{Code: one.Op, Jt: one.Jt, Jf: one.Jf, K: one.K}
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("attach a filter to the listener: %w", err)
	}
	return nil
}

// ignoring returns a filter that ignores packets that open connections from the addresses. Accepted
// connections inherit the filter, and no packet of theirs opens a connection.
func ignoring(addresses []netip.Addr) []bpf.Instruction {
	var four, six []bpf.Instruction
	ignore, accept := bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: wholePacket}
	for _, address := range addresses {
		if address.Is4() {
			bytes := address.As4()
			four = append(four, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(bytes[:]), SkipTrue: instructionsOf4 - 1}, ignore)
			continue
		}
		bytes := address.As16() // the first half counts, as in addressOf
		six = append(six,
			bpf.LoadAbsolute{Off: sourceOfIPv6, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(bytes[:4]), SkipTrue: 3},
			bpf.LoadAbsolute{Off: sourceOfIPv6 + 4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(bytes[4:8]), SkipTrue: 1},
			ignore)
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: flagsOfTCP, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: tcpSyn | tcpAck},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: tcpSyn, SkipTrue: 1},
		accept,
		bpf.LoadAbsolute{Off: versionOfIP, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: versionBits},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: versionFour, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(four) + 2)},
		bpf.LoadAbsolute{Off: sourceOfIPv4, Size: 4},
	}
	program = append(append(program, four...), accept)
	return append(append(program, six...), accept)
}
