package netns

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// headSize is the size of a request before its attributes: a struct nlmsghdr, and a struct rtgenmsg of one byte, which is aligned to four.
const headSize = unix.SizeofNlMsghdr + 4

// attribute returns one attribute of a 32-bit value, see rtnetlink(7).
func attribute(kind uint16, value uint32) []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}

// ask makes one request on a socket of its own, and returns the number in its answer: -1 if it has none.
func ask(kind uint16, attributes ...[]byte) (nsid int32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	flags := uint16(unix.NLM_F_REQUEST)
	if kind != unix.RTM_GETNSID {
		flags |= unix.NLM_F_ACK
	}
	message := make([]byte, headSize)
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], flags)
	binary.NativeEndian.PutUint32(message[8:], 1)
	for _, a := range attributes {
		message = append(message, a...)
	}
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096) // the kernel has answered before sendto returns
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil || len(messages) == 0 {
		return 0, errors.Join(err, errors.New("the kernel's answer is cut"))
	}
	return result(messages[0])
}

// result takes an answer: an error, which may be none, or a number.
func result(m syscall.NetlinkMessage) (nsid int32, err error) {
	if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
			return 0, unix.Errno(-code)
		}
		return -1, nil
	}
	if nsid, ok := numberIn(m.Data); ok {
		return nsid, nil
	}
	return -1, nil
}

// numberIn returns the NETNSA_NSID of a message's data.
func numberIn(data []byte) (nsid int32, ok bool) {
	for data = data[min(4, len(data)):]; len(data) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return 0, false
		}
		if binary.NativeEndian.Uint16(data[2:]) == unix.NETNSA_NSID && size >= unix.SizeofRtAttr+4 {
			return int32(binary.NativeEndian.Uint32(data[unix.SizeofRtAttr:])), true
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return 0, false
}
