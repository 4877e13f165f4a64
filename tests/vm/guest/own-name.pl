# own-name.pl NAME [OTHER [wait]]: writes its number into /run/own-name, calls OTHER, which nobody has yet, and owns NAME on the message
# bus. With `wait` it owns the name only when the call is answered. The bytes are those of the D-Bus specification.
use strict;
use warnings;
use Socket;

my ($name, $other, $wait) = @ARGV;
my $serial = 0;
open(my $log, '>>', '/run/own-name') or die $!;
print $log "$$\n";
close $log;
socket(my $bus, AF_UNIX, SOCK_STREAM, 0) or die $!;
connect($bus, pack_sockaddr_un('/run/dbus/system_bus_socket')) or die "no bus: $!\n";

sub string { my ($value) = @_; return pack('V/a* x', $value) }

sub call {
	my ($to, $member, $signature, $body) = @_;
	my $head = '';
	for ([1, 'o', '/org/freedesktop/DBus'], [2, 's', 'org.freedesktop.DBus'], [3, 's', $member], [6, 's', $to], [8, 'g', $signature]) {
		my ($code, $type, $value) = @$_;
		$head .= "\0" x (-length($head) % 8) . pack('C C a x', $code, 1, $type);
		$head .= $type eq 'g' ? pack('C/a* x', $value) : string($value);
	}
	my $whole = pack('a C C C V V V', 'l', 1, 0, 1, length $body, ++$serial, length $head) . $head;
	syswrite $bus, $whole . "\0" x (-length($whole) % 8) . $body;
}

# The next message to us is enough: nobody else knows us.
sub answer { sysread $bus, my $message, 65536 or exit 1 }

syswrite $bus, "\0AUTH EXTERNAL " . unpack('H*', $>) . "\r\n";
answer();
syswrite $bus, "BEGIN\r\n";
call('org.freedesktop.DBus', 'Hello', '', '');
answer();
call($other, 'Ping', '', '') if $other;
answer() if $wait;
my $body = string($name);
call('org.freedesktop.DBus', 'RequestName', 'su', $body . "\0" x (-length($body) % 4) . pack('V', 0));
answer() while 1;
