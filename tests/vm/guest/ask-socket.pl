# ask-socket.pl PATH | PORT | @NAME MESSAGE: connects, and prints what the service answers; or sends a datagram.
use strict;
use warnings;
use Socket;

alarm 20;
my ($address, $message) = @ARGV;
my ($family, $to) =
	  $address =~ /^\// ? (AF_UNIX, pack_sockaddr_un($address))
	: $address =~ /^@/ ? (AF_UNIX, pack_sockaddr_un("\0" . substr $address, 1))
	:                    (AF_INET, pack_sockaddr_in($address, inet_aton('127.0.0.1')));
socket(my $socket, $family, defined $message ? SOCK_DGRAM : SOCK_STREAM, 0) or die $!;
connect($socket, $to) or die "$address: $!\n";
defined $message ? send($socket, $message, 0) : print scalar <$socket>;
