package testenv

import (
	"bufio"
	"crypto/tls"
	"net"
	"time"
)

// helloLimit bounds the wait for a connection's first byte.
const helloLimit = 2 * time.Second

// recordHandshake is the first byte of a TLS connection (RFC 8446, 5.1).
const recordHandshake = 0x16

// eitherListener accepts TLS and plain connections on one port. A client speaks first in both.
type eitherListener struct {
	net.Listener
	config *tls.Config
}

func (l *eitherListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		head := bufio.NewReader(c)
		_ = c.SetReadDeadline(time.Now().Add(helloLimit))
		first, err := head.Peek(1)
		if err != nil {
			_ = c.Close()
			continue
		}
		_ = c.SetReadDeadline(time.Time{})
		peeked := &peekedConn{c, head}
		if first[0] == recordHandshake {
			return tls.Server(peeked, l.config), nil
		}
		return peeked, nil
	}
}

// peekedConn is a connection of which the first bytes are in a buffer.
type peekedConn struct {
	net.Conn
	head *bufio.Reader
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.head.Read(b) }
