package registry

import "context"

// Login checks credentials against a registry and then stores them where Docker and podman find them. user is empty when
// secret is an identity token.
func (c *Client) Login(ctx context.Context, host, user, secret string) (stored string, err error) {
	panic("not yet")
}

// Logout removes the stored credentials of host; none is no error.
func (c *Client) Logout(ctx context.Context, host string) (removedFrom string, err error) {
	panic("not yet")
}
