package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
)

// strangers are what answers at a socket that is not a broker's, by how it does.
var strangers = map[string]func(net.Conn){
	"silent": func(c net.Conn) { io.Copy(io.Discard, c) },
	"closes": func(net.Conn) {},
	"flood": func(c net.Conn) {
		for zeros := make([]byte, 64<<10); ; {
			if _, err := c.Write(zeros); err != nil {
				return
			}
		}
	},
	"versions": func(c net.Conn) { // as a broker of version 2, whose refusals look the same
		c.Write(append([]byte{2, 5, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}, "none"...))
		io.Copy(io.Discard, c)
	},
	"http": func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request")
	},
	"frames": func(c net.Conn) { // well-formed, and none that a broker answers
		for data := bytes.Repeat([]byte{1, 34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1000); ; {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	},
}

// playStranger listens at a path in the way that its first argument names. The path is there when it listens.
func playStranger(args []string) error {
	answer := strangers[args[0]]
	l, err := net.Listen("unix", args[1]+".new")
	if err != nil {
		return err
	}
	if err := os.Rename(args[1]+".new", args[1]); err != nil {
		return fmt.Errorf("put the socket where it belongs: %w", err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			answer(c)
		}()
	}
}
